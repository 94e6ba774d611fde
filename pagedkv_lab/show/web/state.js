// What every drawing class gets: one `state` object, made here from the traits of the kernel's widget.
//
// Knows the traits and how numbers are packed into bytes. Does not know how anything is drawn, nor when a
// frame comes.

/** Rows of the `pool` trait, in order; each has one number a block. */
const POOL_ROWS = ["state", "refs", "filled", "owner", "lastUse", "event", "eventStep"];
const HISTORY_ROWS = ["step", "filled", "reserved", "contiguous"];

/** Last thing that happened to a block, as in `pool.event`. */
const EVENT_ALLOCATED = 1;
const EVENT_HIT = 2;
const EVENT_COPIED = 3;
const EVENT_EVICTED = 4;

/**
 * One frame as the kernel last sent it, or null where it has not sent any.
 * details: what is known of single blocks, a Map that grows with the kernel's messages.
 */
function decodeFrame(model, details) {
  const frame = model.get("frame");
  if (!frame || frame.serial === undefined) return null;
  const tables = int32s(model.get("tables"));
  return {
    serial: frame.serial,
    kind: model.get("kind"),
    meta: model.get("meta"),
    step: frame.step,
    pool: poolOf(int32s(model.get("pool"))),
    sequences: frame.sequences.map((sequence) => withTable(sequence, tables)),
    numbers: frame.numbers,
    history: rowsOf(int32s(model.get("history")), HISTORY_ROWS),
    log: frame.log,
    details,
    baseline: frame.baseline,
    phase: frame.phase,
  };
}

/** Little-endian int32 in a DataView, at any offset: copied, because Int32Array wants to start at a multiple of 4. */
function int32s(view) {
  if (!view || !view.byteLength) return new Int32Array(0);
  const [buffer, offset] = view.buffer ? [view.buffer, view.byteOffset] : [view, 0];
  return new Int32Array(buffer.slice(offset, offset + view.byteLength));
}

/** Cut one array into named rows of equal length `n`. */
function rowsOf(numbers, names) {
  const n = numbers.length / names.length;
  const rows = { n };
  names.forEach((name, i) => (rows[name] = numbers.subarray(i * n, (i + 1) * n)));
  return rows;
}

function poolOf(numbers) {
  return rowsOf(numbers, POOL_ROWS);
}

/** A frame's sequence says where its table lies among all tables; give it the table itself. */
function withTable(sequence, tables) {
  const [offset, length] = sequence.table;
  return { ...sequence, table: tables.subarray(offset, offset + length) };
}

/** The state in one sentence, for a screen reader. */
function stateSentence({ step, numbers }) {
  const { used, shared, cached, free } = numbers;
  return `step ${step}: ${plural(used, "block")} in use, ${shared} shared, ${cached} cached, ${free} free`;
}
