// A recording of a run, and the state at any of its frames.
//
// Knows the recording's format: each frame says only what changed since the one before. Does not know what
// plays it, how fast, or how it is drawn.

const RECORDING_FORMAT = "pagedkv-recording";
const RECORDING_VERSION = 1;

/** A full copy is kept of every 32nd frame, so that going back applies 31 frames at most. */
const KEYFRAME_EVERY = 32;
/** Log lines shown at once, as many as the kernel sends. */
const LOG_LINES = 60;

/**
 * Unpack a recording: gzip of JSON, as bytes. Resolves to the recording; rejects with an Error whose message is
 * a sentence for the reader.
 */
async function loadRecording(bytes) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser can't unpack the recording (it has no DecompressionStream). A newer one can.");
  }
  let recording;
  try {
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    recording = JSON.parse(await new Response(unpacked).text());
  } catch {
    throw new Error("This recording can't be read: it is damaged or not complete.");
  }
  if (recording?.format !== RECORDING_FORMAT) throw new Error("This file is not a recording of a block pool.");
  if (recording.version !== RECORDING_VERSION) {
    throw new Error(`This recording has version ${recording.version}; this viewer reads ${RECORDING_VERSION}.`);
  }
  return recording;
}

/** Gives the state at frame k, 0 <= k < length, in any order. */
class Player {
  constructor({ meta, frames, log }) {
    this.meta = meta;
    this.frames = frames;
    this.log = log;
    this.length = frames.length;
    this.history = this.wholeHistory();
    this.cursor = this.beginning();
    this.keyframes = [];
  }

  /** The state that drawing classes want; it shares no array that will change later. */
  at(k) {
    this.seek(k);
    const frame = this.frames[k];
    const { pool, sequences, details, baseline } = this.cursor;
    return {
      serial: k + 1,
      kind: "replay",
      meta: this.meta,
      step: frame.step,
      pool: poolOf(pool.slice()),
      sequences: frame.order.map((id) => sequences.get(id)),
      numbers: frame.numbers,
      history: rowsUpTo(this.history, k + 1),
      log: this.logUpTo(frame.step),
      details: new Map(details),
      baseline,
      phase: frame.phase,
    };
  }

  /** Before the first frame: nothing. */
  beginning() {
    const pool = new Int32Array(POOL_ROWS.length * this.meta.num_blocks);
    return { k: -1, pool, sequences: new Map(), details: new Map(), baseline: null };
  }

  /** Move the cursor to frame k, from where it is or from the last full copy before k, whichever is nearer. */
  seek(k) {
    const index = Math.min(Math.floor(k / KEYFRAME_EVERY), this.keyframes.length - 1);
    const keyframe = this.keyframes[index];
    if (keyframe && (this.cursor.k > k || this.cursor.k < keyframe.k)) this.cursor = copyOfCursor(keyframe);
    while (this.cursor.k < k) this.advance();
  }

  /** Apply the next frame. */
  advance() {
    const { cursor } = this;
    cursor.k += 1;
    const frame = this.frames[cursor.k];
    applyBlocks(cursor.pool, frame.blocks, this.meta.num_blocks);
    applySequences(cursor.sequences, frame);
    for (const [block, [key, text]] of Object.entries(frame.details ?? {})) {
      cursor.details.set(Number(block), { key, text });
    }
    if (frame.baseline !== undefined) cursor.baseline = frame.baseline;
    if (cursor.k === this.keyframes.length * KEYFRAME_EVERY) this.keyframes.push(copyOfCursor(cursor));
  }

  wholeHistory() {
    const slots = this.meta.block_size;
    return {
      step: Int32Array.from(this.frames, (frame) => frame.step),
      filled: Int32Array.from(this.frames, (frame) => frame.numbers.used_slots),
      reserved: Int32Array.from(this.frames, (frame) => frame.numbers.used * slots),
      contiguous: Int32Array.from(this.frames, (frame) => frame.contiguous ?? 0),
    };
  }

  /** The last lines up to and with this step; the log is in the order of steps. */
  logUpTo(step) {
    let low = 0;
    let high = this.log.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.log[middle][0] <= step) low = middle + 1;
      else high = middle;
    }
    return this.log.slice(Math.max(0, low - LOG_LINES), low);
  }
}

/** Only the pool is changed in place; sequences, details and baselines are replaced, so the copies may share them. */
function copyOfCursor(cursor) {
  const { pool, sequences, details } = cursor;
  return { ...cursor, pool: pool.slice(), sequences: new Map(sequences), details: new Map(details) };
}

/** changes: block, then its new value in each of the pool's rows, one block after the other. */
function applyBlocks(pool, changes, n) {
  const width = 1 + POOL_ROWS.length;
  for (let i = 0; i < changes.length; i += width) {
    for (let row = 0; row < POOL_ROWS.length; row += 1) pool[row * n + changes[i]] = changes[i + 1 + row];
  }
}

/** Take over changed fields, and drop what the frame no longer lists. */
function applySequences(sequences, frame) {
  for (const [key, changes] of Object.entries(frame.sequences)) {
    const id = Number(key);
    const before = sequences.get(id) ?? { id, table: new Int32Array(0) };
    const table = changes.table ? grownTable(before.table, changes.table) : before.table;
    sequences.set(id, { ...before, ...changes, table });
  }
  const kept = new Set(frame.order);
  for (const id of sequences.keys()) if (!kept.has(id)) sequences.delete(id);
}

/** The first `keep` blocks of the table, then the new ones. */
function grownTable(table, [keep, ...blocks]) {
  const grown = new Int32Array(keep + blocks.length);
  grown.set(table.subarray(0, keep));
  grown.set(blocks, keep);
  return grown;
}

function rowsUpTo(rows, n) {
  const first = { n };
  for (const name of HISTORY_ROWS) first[name] = rows[name].subarray(0, n);
  return first;
}
