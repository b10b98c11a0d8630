// What the scripts of the pages are given, for the type checker alone.

/** Whichever typed array a column is: all behave alike. */
type Column = Float64Array;
type Table = Record<string, Column>;
type Context = CanvasRenderingContext2D;
type Numbers = ArrayLike<number>;

interface Point {
  x: number;
  y: number;
}

/** Where a chart's data is drawn, in pixels. */
interface Plot {
  left: number;
  top: number;
  width: number;
  height: number;
  bottom: number;
}

interface Chart {
  draw: () => void;
}

/** The same of a panel whose axis goes from low to high. */
interface Scaled extends Plot {
  low: number;
  high: number;
}

/** Cells of a heat map: which ranks and steps they stand for. */
interface Shape {
  first_step: number;
  last_step: number;
  steps_per_bin: number;
  ranks: number;
  ranks_per_bin: number;
  rows: number;
  columns: number;
  scales: Record<string, [number, number]>;
  order: number[];
}

type Directory = Record<string, Record<string, { type: string; offset: number; length: number }>>;
type Named = Record<string, number>;

/** What the page of a report knows beside its columns. */
interface Facts {
  directory: Directory;
  grid: Shape | null;
  waiting: WaitingFacts | null;
  host_waits: HostFacts | null;
  fabric: Fabric | null;
  sizes: { name: string; rests_on: string }[] | null;
  algorithms: string[];
  world: number;
  compared: number | null;
  culprits: number[];
  clock_error_us: number;
  unplaced: number[];
  places: Record<number, Record<string, string>>;
  names: Record<number, string>;
  groups: { name: string; ranks: string }[];
  nodes: Record<number, string>;
  kinds: Named;
  ops: Named;
  phases: Named;
  flags: Named;
}

interface WaitingFacts {
  ranks: number[];
  ranks_per_bin: number;
}

/** Hosts that wait for each other. */
interface HostFacts {
  places: { name: string; ranks: string; groups: string }[];
}

/** A simulated fabric. */
interface Fabric {
  fabric: string;
  shape: number[];
  elapsed_ns: number;
  kinds: string[];
  tiers: { name: string; plural: string; size: number; places: number; together: number }[];
  places: { tier: string; name: string; ranks: string; others: number }[];
}

/** As `evenstep diagnose --json` has it, as far as charts read it. */
interface Diagnosis {
  summary: { step_time?: Record<string, number> };
  findings: { title: string; mode: string; where: { ranks: number[] }; when: { steps: [number, number][] } }[];
}

/** A number of a sweep with its interval over the seeds. */
interface Measured {
  value: number;
  low: number | null;
  high: number | null;
}

interface Measure {
  name: string;
  label: string;
  kind: "number" | "duration" | "share";
  more: number;
}

type Setting = string | number | boolean | null;

/** One combination of a sweep: the fields it varies, and its measures by name. */
type SweepRow = { varied: Record<string, Setting> } & Record<string, any>;

interface SweepView {
  measure: Measure;
  across: string;
  down: string;
}

interface Matrix {
  fixed: [string, Setting][];
  lines: { value: Setting; cells: (SweepRow | null)[] }[];
}

/** A block of a comparison in the laboratory, and what its page knows. */
interface Block {
  arm: number;
  from: number;
  to: number;
  counts: boolean;
}

interface LabFacts {
  directory: Directory;
  jobs: string[];
  arms: string[];
  blocks: Block[];
}
