// The look of the live view: colours, dark or light, motion.
//
// Knows the page (its CSS variables, its theme) and the kinds of block. Does not know how anything is painted.

// Okabe-Ito colours, as in show/style.py: told apart by people with any kind of colour blindness.
const OKABE_ITO = {
  blue: "#0072B2",
  orange: "#E69F00",
  green: "#009E73",
  pink: "#CC79A7",
  sky: "#56B4E9",
  red: "#D55E00",
  yellow: "#F0E442",
};
const SEQUENCE_COLOURS = ["blue", "orange", "green", "pink", "sky", "red"].map((name) => OKABE_ITO[name]);
const GREY = "#8c8c98"; // what nobody owns
const STATE_COLOURS = { cached: GREY, used: OKABE_ITO.blue, shared: OKABE_ITO.orange }; // when coloured by state

/** What a block can be, as in `state.pool.state`. */
const FREE = 0;
const CACHED = 1;
const USED = 2;
const FINE = 12; // from this side on, a block has full hatching, and the count of those who share it
const BIG = 30; // from this side on, there is room for the block's own number above that count

/** Colour of a sequence by its id, from 1; grey for 0, nobody. */
function sequenceColour(id) {
  return id > 0 ? SEQUENCE_COLOURS[(id - 1) % SEQUENCE_COLOURS.length] : GREY;
}

/** The colour where blocks are coloured by state. */
function stateColour(state, holders) {
  if (state === USED) return holders > 1 ? STATE_COLOURS.shared : STATE_COLOURS.used;
  return STATE_COLOURS.cached;
}

/** Black or white, whichever is read more easily on `colour`, "#rrggbb" (WCAG's relative luminance). */
function textOn(colour) {
  const [r, g, b] = channels(colour).map((c) => (c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

/** "#rrggbb" -> [red, green, blue], 0 to 255 */
function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function hexColour(red, green, blue) {
  return "#" + [red, green, blue].map((c) => Math.round(c).toString(16).padStart(2, "0")).join("");
}

/** `colour` with `share` (0 to 1) of `other` in it; both "#rrggbb" */
function mixColours(colour, other, share) {
  const there = channels(other);
  return hexColour(...channels(colour).map((c, i) => c + (there[i] - c) * share));
}

function withAlpha(colour, alpha) {
  return colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

/** Is the page's theme dark? JupyterLab, Colab and VS Code each say so in their own way; else the system does. */
function isDark() {
  const { body, documentElement } = document;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (documentElement.hasAttribute("theme")) return documentElement.getAttribute("theme") === "dark";
  if (/\bvscode-(light|dark|high-contrast)/.test(body.className)) {
    return /\bvscode-(dark|high-contrast(?!-light))/.test(body.className);
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Calls `changed()` whenever the theme may have changed; returns a function that ends this. */
function watchTheme(changed) {
  const observer = new MutationObserver(changed);
  observer.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  observer.observe(document.documentElement, { attributeFilter: ["theme", "class"] });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", changed);
  return () => {
    observer.disconnect();
    system.removeEventListener("change", changed);
  };
}

function reducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** The colours of the page around `element`, each "#rrggbb": the theme's own where it has them. */
function readPalette(element) {
  const style = getComputedStyle(element);
  const dark = isDark();
  const pick = (name, light, night, behind) => opaque(style.getPropertyValue(name), dark ? night : light, behind);
  const background = pick("--jp-layout-color1", "#ffffff", "#16161a", "#ffffff");
  const ink = pick("--jp-ui-font-color1", "#1b1b1f", "#ececf1", background);
  return {
    dark,
    background,
    ink,
    dim: pick("--jp-ui-font-color2", "#6b6b76", "#9a9aa8", background),
    line: mixColours(background, ink, dark ? 0.2 : 0.17), // outline of what is empty
    font: style.fontFamily || "sans-serif",
  };
}

/** Any CSS colour as "#rrggbb", as it looks on `behind`: one pixel is painted and read back. */
function opaque(colour, fallback, behind) {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  for (const layer of [behind, CSS.supports("color", colour.trim()) ? colour.trim() : fallback]) {
    probe.fillStyle = layer;
    probe.fillRect(0, 0, 1, 1);
  }
  return hexColour(...probe.getImageData(0, 0, 1, 1).data.slice(0, 3));
}
