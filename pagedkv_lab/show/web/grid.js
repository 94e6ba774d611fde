// Where the blocks of the pool are: how many columns, how far apart, which block is at a point.
//
// Knows a width and a number of blocks. Does not know what is drawn there.

const BLEED = 4; // CSS px around the grid for the marks of the outermost blocks
const GRID_HEIGHT = 520; // CSS px: a grid gets more columns before it gets higher
const GAP = 0.15; // between two blocks, as a share of the way from one to the next
const TINY = 5; // CSS px from one block to the next, below which a block is a spot of colour

/** Where the blocks are: block 0 at the top left, row by row. Lengths are CSS px; edges lie on device pixels. */
class PoolGrid {
  constructor(blocks, width, ratio) {
    Object.assign(this, { blocks, ratio }, chooseColumns(blocks, width, ratio));
    this.rows = Math.ceil(blocks / this.columns);
    this.gap = this.pitch < 4 ? 0 : Math.max(1, Math.round(this.pitch * GAP * ratio)) / ratio;
    this.side = Math.floor(this.pitch * ratio + 1e-6) / ratio - this.gap;
    this.height = this.edge(this.rows - 1) + this.side + BLEED;
  }

  get tiny() {
    return this.pitch < TINY;
  }

  rect(block) {
    const x = this.edge(block % this.columns);
    return { x, y: this.edge(Math.floor(block / this.columns)), width: this.side, height: this.side };
  }

  edge(index) {
    return Math.round((BLEED + index * this.pitch) * this.ratio) / this.ratio;
  }

  /** The block at a point; half of the gap around a block belongs to it. */
  blockAt(x, y) {
    const [column, row] = [x, y].map((at) => Math.floor((at - BLEED + this.gap / 2) / this.pitch));
    const block = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && block < this.blocks ? block : null;
  }
}

/**
 * { columns, pitch }: big blocks, in a grid that is as wide as there is room, without a rest in its last row if that
 * costs little. Few blocks keep a natural size instead. pitch: from one block to the next.
 */
function chooseColumns(blocks, width, ratio) {
  const biggest = Math.min(58, Math.max(30, 58 * Math.sqrt(64 / blocks)));
  const room = width - 2 * BLEED;
  if (blocks < 16) return { columns: blocks, pitch: Math.min(biggest, room / blocks) };
  let best = { score: 0 };
  for (let columns = 4; columns <= Math.min(blocks / 2, room * ratio); columns += blocks < 128 ? 1 : 4) {
    let pitch = Math.min(biggest, GRID_HEIGHT / Math.ceil(blocks / columns), room / (columns - GAP));
    if (pitch < 14) pitch = Math.floor(pitch * ratio) / ratio; // uneven gaps would be seen
    const fill = ((columns * pitch) / room) ** (blocks < 48 ? 0.5 : 1.5);
    const score = pitch * fill * (pitch < 14 || blocks % columns === 0 ? 1 : blocks < 256 ? 0.7 : 0.8);
    if (score > best.score) best = { columns, pitch, score };
  }
  if (best.columns) return best;
  return { columns: Math.max(1, Math.floor(room * ratio)), pitch: 1 / ratio }; // more than fit: higher, then
}
