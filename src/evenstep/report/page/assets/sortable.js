// @ts-check
// Tables that sort by the column whose head is pressed.

/** Order of two cells: numbers by size, text by the alphabet, what is not known last. @param {string} first @param {string} second */
function cellOrder(first, second) {
  if (first === "" || second === "") return Number(first === "") - Number(second === "");
  const [a, b] = [Number(first), Number(second)];
  if (Number.isNaN(a) || Number.isNaN(b)) return String(first).localeCompare(String(second));
  return a - b;
}

/** Rows in order of a column; of equal ones the order stays. @param {string[][]} rows @param {number} column */
function sortedRows(rows, column, descending = false) {
  /** @param {string[]} row */
  const unknown = (row) => row[column] === "";
  /** @param {string[]} a @param {string[]} b */
  const order = (a, b) => (unknown(a) || unknown(b) || !descending ? 1 : -1) * cellOrder(a[column], b[column]);
  return rows.map((row, at) => ({ row, at })).sort((a, b) => order(a.row, b.row) || a.at - b.at).map(({ at }) => at);
}

/** @param {HTMLTableElement} table whose cells say in data-value what they sort by */
function sortable(table) {
  const heads = Array.from(table.querySelectorAll("thead th"));
  const body = table.tBodies[0];
  const original = Array.from(body.rows);
  const values = original.map((row) => Array.from(row.cells, (cell) => cell.dataset.value ?? cell.textContent ?? ""));
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      body.append(...sortedRows(values, column, descending).map((at) => original[at]));
    });
  });
}
