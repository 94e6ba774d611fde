// The way in: from a notebook's widget (initialize, render), and from an exported page (showPage).
//
// Knows anywidget's two hooks and the page's elements. Does not know what is in a view.

/**
 * The widget's source. anywidget loads this module once for every widget and hands `initialize` and `render`
 * different wrappers of the same model, so what they share is kept here and not by model.
 */
let widgetSource = null;

/** Once for a widget, before any view of it. */
function initialize({ model }) {
  widgetSource = sourceOf(model);
  return () => widgetSource.close();
}

/** Once for a view of the widget. Returns how to take it away. */
function render({ model, el }) {
  widgetSource ??= sourceOf(model);
  const root = element("div");
  el.append(root);
  const view = new View(root, widgetSource, model.get("options")?.colour_by);
  return () => view.destroy();
}

function sourceOf(model) {
  if (model.get("kind") !== "replay") return new LiveSource(model);
  const source = new ReplaySource();
  const load = () => {
    const { buffer, byteOffset, byteLength } = model.get("recording");
    if (byteLength) source.load(new Uint8Array(buffer, byteOffset, byteLength), model.get("start"));
  };
  model.on("change:recording", load);
  load();
  return source;
}

/** An exported page: the recording is in it, as base64. The fallback stays where it can't be shown. */
async function showPage() {
  const source = new ReplaySource();
  const root = element("div");
  document.getElementById("pkv-page").prepend(root);
  new View(root, source);
  await source.load(fromBase64(document.getElementById("pkv-recording").textContent));
  if (!source.length) return;
  document.getElementById("pkv-fallback").remove();
  if (!reducedMotion()) source.toggle(); // what moves is what there is to see
}

/** The bytes; none for text that is not base64, which is no recording either. */
function fromBase64(text) {
  try {
    return Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  } catch {
    return new Uint8Array(0);
  }
}
