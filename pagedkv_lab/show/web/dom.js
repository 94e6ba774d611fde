// Small helpers to build the page's elements.
//
// Knows the DOM. Does not know what is shown. Text always goes in as text, never as HTML: prompts and what
// models write are shown here.

/** An element: element("button", {class: "pkv-go", onclick: run}, "Run"). What starts with "on" is a listener. */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else setAttribute(node, name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** A new box inside `parent`, with the class pkv-NAME. */
function box(parent, name, attributes = {}) {
  const node = element("div", { class: `pkv-${name}`, ...attributes });
  parent.append(node);
  return node;
}

/** Set, or for null and false remove, an attribute. */
function setAttribute(node, name, value) {
  if (value === null || value === false || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : String(value));
}

/** Put text into a node, and leave the page alone where it is there already. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const ICON_PATHS = {
  run: "M4 2.5v11l9-5.5z",
  pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z",
  step: "M3 2.5v11l7-5.5zM11 2.5h2.2v11H11z",
  back: "M13 2.5v11L6 8zM2.8 2.5H5v11H2.8z",
  settings: "M1 3.2h8v1.6H1zM11 1.8h2v1.4h2v1.6h-2v1.4h-2zM1 11.2h3v1.6H1zM6 9.8h2v1.4h7v1.6H8v1.4H6z",
  close: "M3.6 2.5 8 6.9l4.4-4.4 1.1 1.1L9.1 8l4.4 4.4-1.1 1.1L8 9.1l-4.4 4.4-1.1-1.1L6.9 8 2.5 3.6z",
};

/** One of the small pictures on buttons; the button's text or label says the same. */
function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICON_PATHS[name]);
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "pkv-icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return svg;
}

/** A button with a picture, a text, or both. */
function iconButton(name, text, attributes) {
  const label = text ? element("span", { class: "pkv-button-text" }, text) : null;
  return element("button", { type: "button", ...attributes }, icon(name), label);
}

/** 1,234 and so on. */
function withCommas(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** "3 blocks", "1 block". */
function plural(count, noun) {
  return `${withCommas(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** 0.941 as "94.1 %"; a dash where there is nothing to divide by. */
function percent(share, digits = 0) {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(digits)} %`;
}

const SHORT = 40; // characters; what is longer keeps its last words
const TAIL = 26;

/**
 * A text that, where there is no room for all of it, is cut in the middle (CSS does that): prompts often begin alike.
 * Returns its node and a function that sets another text.
 */
function middleCutText(className) {
  const [head, tail] = [element("span"), element("span")];
  const setTo = (text) => {
    const end = text.length - TAIL;
    const cut = text.length <= SHORT ? text.length : Math.max(text.indexOf(" ", end), end);
    setText(head, text.slice(0, cut));
    setText(tail, text.slice(cut));
  };
  return { node: element("span", { class: `pkv-middle-cut ${className}` }, head, tail), setTo };
}

/** Bytes as MiB or GiB. */
function binarySize(bytes) {
  const mebibytes = bytes / 2 ** 20;
  if (mebibytes >= 1024) return `${(mebibytes / 1024).toFixed(1)} GiB`;
  return `${mebibytes >= 10 ? Math.round(mebibytes) : mebibytes.toFixed(1)} MiB`;
}
