// All blocks, on a canvas that nobody sees: of a new frame, only blocks that look different are painted again.
//
// Knows the arrays of `state.pool` and the grid. Does not know how a block is painted (block.js), nor what moves above.

const FILL_LEVELS = 16; // so many steps of how full a block is are told apart
const LOOK_COLOURS = [GREY, ...SEQUENCE_COLOURS]; // a look's colour is its place in here

/** The lower layer: all blocks, painted when they look different from before. */
class BlockLayer {
  constructor(grid, palette, ratio) {
    Object.assign(this, { grid, palette, ratio });
    this.looks = new Int32Array(grid.blocks).fill(-1);
    this.sprites = new Map(); // look -> a canvas with one such block
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
    const width = grid.edge(grid.columns - 1) + grid.side + BLEED;
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(grid.height * ratio) });
  }

  update(state, colourBy) {
    if (state === this.state && colourBy === this.colourBy) return;
    Object.assign(this, { state, colourBy });
    const changed = [];
    for (let block = 0; block < this.grid.blocks; block += 1) {
      const look = lookOf(state, block, colourBy);
      if (look === this.looks[block]) continue;
      this.looks[block] = look;
      changed.push(block);
    }
    if (this.grid.tiny && changed.length) this.paintSpots();
    else for (const block of changed) this.paintOne(block);
  }

  paintOne(block) {
    const { x, y, width } = this.grid.rect(block);
    const [left, top, side] = [x, y, width].map((length) => Math.round(length * this.ratio));
    this.context.clearRect(left, top, side, side);
    this.context.drawImage(this.sprite(this.looks[block]), left, top);
    if (this.grid.side >= BIG) this.paintNumbers(block, x, y);
  }

  sprite(look) {
    if (!this.sprites.has(look)) {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = Math.round(this.grid.side * this.ratio);
      const context = canvas.getContext("2d");
      context.scale(this.ratio, this.ratio);
      paintBlock(context, 0, 0, this.grid.side, readLook(look), this.palette);
      this.sprites.set(look, canvas);
    }
    return this.sprites.get(look);
  }

  /** In big blocks: their number in the upper left corner, and how many slots are filled where it is not all. */
  paintNumbers(block, x, y) {
    const { context, palette, ratio } = this;
    const { side } = this.grid;
    const look = readLook(this.looks[block]);
    context.save();
    context.scale(ratio, ratio);
    const write = (text, right, middle) => {
      const wide = context.measureText(text).width;
      const [ink, edge] = inkOn(look, middle - 0.12, middle + 0.12, palette);
      const inset = wide / 2 + (look.holders > 1 ? 6 : 5);
      const across = right ? x + side - inset : x + inset;
      paintLabel(context, text, across, y + side * middle, look.state === FREE ? palette.dim : ink, edge);
    };
    context.font = `500 ${side < 40 ? 9 : 10.5}px ${palette.font}`;
    write(String(block), false, 0.2);
    const { pool, meta } = this.state;
    const partial = look.state === USED && look.level < 1;
    if (partial && side >= 40) write(`${pool.filled[block]}/${meta.block_size}`, true, 0.82);
    context.restore();
  }

  /** Tiny blocks: one pixel a block, enlarged; where there is room, lines between them. */
  paintSpots() {
    const { columns, rows, pitch, gap } = this.grid;
    const spots = document.createElement("canvas");
    Object.assign(spots, { width: columns, height: rows });
    const image = new ImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = new Map();
    this.looks.forEach((look, block) => {
      if (!colours.has(look)) colours.set(look, spotColour(readLook(look), this.palette));
      pixels[block] = colours.get(look);
    });
    spots.getContext("2d").putImageData(image, 0, 0);
    const { context, ratio, canvas } = this;
    const [step, line, start] = [pitch, gap, BLEED].map((length) => Math.round(length * ratio));
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingEnabled = false;
    context.drawImage(spots, start, start, columns * step, rows * step);
    if (line === 0) return;
    for (let x = start + step - line; x < canvas.width; x += step) context.clearRect(x, 0, line, canvas.height);
    for (let y = start + step - line; y < canvas.height; y += step) context.clearRect(0, y, canvas.width, line);
  }
}

/** What a block looks like, packed into one number, so that two looks are quickly compared. */
function lookOf({ pool, meta }, block, colourBy) {
  const state = pool.state[block];
  if (state === FREE) return FREE;
  const holders = state === USED ? Math.min(pool.refs[block], 100) : 0;
  const share = pool.filled[block] / meta.block_size;
  const level = share < 1 ? Math.min(FILL_LEVELS - 1, Math.ceil(share * FILL_LEVELS)) : FILL_LEVELS;
  const colour = colourBy === "state" ? stateColour(state, holders) : sequenceColour(pool.owner[block]);
  return state | (LOOK_COLOURS.indexOf(colour) << 2) | (level << 6) | (holders << 12);
}

function readLook(look) {
  const colour = LOOK_COLOURS[(look >> 2) & 15];
  return { state: look & 3, colour, level: ((look >> 6) & 63) / FILL_LEVELS, holders: look >> 12 };
}

/** The look of a tiny block as one pixel: red, green, blue, alpha, from the lowest byte up. */
function spotColour({ state, colour, level, holders }, palette) {
  let [seen, alpha] = [colour, 1];
  if (state === FREE) [seen, alpha] = [palette.ink, 0.1];
  else if (state === CACHED) alpha = 0.42;
  else if (holders > 1) seen = mixColours(colour, palette.ink, 0.4);
  else alpha = 0.6 + 0.4 * level;
  const [red, green, blue] = channels(seen);
  return ((Math.round(alpha * 255) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
