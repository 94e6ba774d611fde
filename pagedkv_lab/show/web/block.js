// How one block is painted: free, hatched, filled to a level, with a ring and the number of those who share it.
//
// Knows the kinds of block and the palette. Does not know the pool.

/**
 * One block, side x side, with its top left corner at (x, y).
 * look: { state, colour, level, holders }; level: how full, 0 to 1; holders: sequences that hold it
 */
function paintBlock(context, x, y, side, look, palette) {
  const corner = side < 6 ? 0 : Math.min(side * 0.17, 7);
  context.save();
  context.beginPath();
  context.roundRect(x, y, side, side, corner);
  context.clip();
  if (look.state === CACHED) paintHatched(context, x, y, side, side, look.colour, side * (side < FINE ? 1.42 : 0.33));
  if (look.state === USED) paintFilled(context, x, y, side, look);
  context.restore();
  if (look.state === FREE) strokeBox(context, x, y, side, corner, palette.line, 1);
  if (look.holders > 1) paintHolders(context, x, y, side, corner, look, palette);
}

function paintFilled(context, x, y, side, { colour, level }) {
  context.fillStyle = withAlpha(colour, 0.28);
  context.fillRect(x, y, side, side);
  context.fillStyle = colour;
  context.fillRect(x, y + side * (1 - level), side, side * level);
}

/** A ring, and how many sequences share the block. */
function paintHolders(context, x, y, side, corner, look, palette) {
  const ring = side < 7 ? 1 : side < 18 ? 1.5 : Math.min(side * 0.09, 3.5);
  strokeBox(context, x, y, side, corner, palette.ink, ring);
  if (side < FINE + 2) return;
  const label = look.holders > 99 ? "99+" : String(look.holders);
  const big = side >= BIG;
  context.font = `700 ${side * (big ? 0.42 : [0.55, 0.5, 0.36][label.length - 1])}px ${palette.font}`;
  const middle = big ? 0.58 : 0.5; // the number is above
  paintLabel(context, label, x + side / 2, y + side * middle, ...inkOn(look, middle - 0.2, middle + 0.2, palette));
}

/**
 * [ink, edge] for text on a block, from share `top` of its height to share `bottom` (0 is the upper edge): on the
 * filled part, on the ground above it, or, with an edge, across both.
 */
function inkOn({ state, colour, level }, top, bottom, palette) {
  if (state !== USED || 1 - level >= bottom) return [palette.ink, null];
  return 1 - level <= top ? [textOn(colour), null] : [palette.ink, palette.background];
}

/** Text around (x, y) in the context's font, with an edge in the colour `edge` where the ground is uneven. */
function paintLabel(context, text, x, y, ink, edge = null) {
  const { actualBoundingBoxAscent: up, actualBoundingBoxDescent: down } = context.measureText("0");
  Object.assign(context, { textAlign: "center", textBaseline: "alphabetic" });
  if (edge) {
    Object.assign(context, { strokeStyle: edge, lineWidth: 3, lineJoin: "round" });
    context.strokeText(text, x, y + (up - down) / 2);
  }
  context.fillStyle = ink;
  context.fillText(text, x, y + (up - down) / 2);
}

/**
 * A tinted box with lines from bottom left to top right, `spacing` apart along its sides: one line, on a stronger tint,
 * where that is more than a side. The caller clips.
 */
function paintHatched(context, x, y, width, height, colour, spacing) {
  context.fillStyle = withAlpha(colour, spacing > width ? 0.32 : 0.2);
  context.fillRect(x, y, width, height);
  context.beginPath();
  for (let reach = spacing * 0.7; reach < width + height; reach += spacing) {
    context.moveTo(x + reach, y);
    context.lineTo(x, y + reach);
  }
  context.strokeStyle = withAlpha(colour, 0.75);
  context.lineWidth = Math.max(1, Math.min(spacing * 0.25, 2.5));
  context.stroke();
}

/** The outline of a box, `line` wide, inside its edge. */
function strokeBox(context, x, y, side, corner, colour, line) {
  context.beginPath();
  context.roundRect(x + line / 2, y + line / 2, side - line, side - line, Math.max(0, corner - line / 2));
  Object.assign(context, { strokeStyle: colour, lineWidth: line });
  context.stroke();
}
