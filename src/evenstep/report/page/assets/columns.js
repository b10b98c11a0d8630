// @ts-check
// The columns packed into the page, as typed arrays by table and name.

/** @type {Record<string, any>} */
const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };

/** @param {string} id @returns {any} */
function embeddedJson(id) {
  return parsedToShow(byId(id).textContent);
}

/** @param {Directory} directory @returns {Promise<Record<string, Table>>} */
async function unpackColumns(directory) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser is too old for the charts (it has no DecompressionStream).");
  }
  const text = atob(byId("columns").textContent.trim());
  const packed = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = await new Response(stream).arrayBuffer();
  const tables = /** @type {Record<string, Table>} */ ({});
  for (const [table, columns] of Object.entries(directory)) {
    tables[table] = {};
    for (const [name, { type, offset, length }] of Object.entries(columns)) {
      tables[table][name] = new ARRAYS[type](raw, offset, length);
    }
  }
  return tables;
}
