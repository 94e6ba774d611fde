// The keyboard, where the view has it and nothing in the view needs the key itself.
//
// Knows which key means what. Does not know what is shown. JupyterLab's own single-letter shortcuts (a new cell, a
// deleted cell) must not hear keys that are meant for the view: it skips elements with data-lm-suppress-shortcuts,
// and other notebooks don't see events that are stopped.

const TAKES_ALL_KEYS = "input[type=text], input[type=number], select, [role=listbox]";
const TAKES_SOME_KEYS = "button, input";
const SOME_KEYS = [" ", "Enter", "ArrowLeft", "ArrowRight", "Home", "End"];

/** Listen to the keys inside `root`; the source says what can be done. Returns how to stop. */
function listenToKeys(root, source) {
  const actions = keyActions(source);
  const onKey = (event) => {
    event.stopPropagation();
    const act = isFree(event) && actions[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  root.dataset.lmSuppressShortcuts = "true";
  root.addEventListener("keydown", onKey);
  return () => root.removeEventListener("keydown", onKey);
}

/** A key alone, that what has the focus has no use for. */
function isFree({ target, key, ctrlKey, altKey, metaKey, defaultPrevented }) {
  if (ctrlKey || altKey || metaKey || defaultPrevented || target.closest(TAKES_ALL_KEYS)) return false;
  return !(target.closest(TAKES_SOME_KEYS) && SOME_KEYS.includes(key));
}

/** What each key does, by the kind of view. */
function keyActions(source) {
  if (source.kind === "playground") {
    const { loop } = source;
    const canRun = () => source.connected && !source.settings.busy;
    const toggle = () => canRun() && (loop.running ? loop.pause() : loop.run());
    return { " ": toggle, k: toggle, ".": () => canRun() && loop.step() };
  }
  if (source.kind !== "replay") return {};
  const toggle = () => source.toggle();
  const [back, next] = [() => source.move(-1), () => source.move(1)];
  const ends = { Home: () => source.move(-source.length), End: () => source.move(source.length) };
  return { " ": toggle, k: toggle, ",": back, ArrowLeft: back, ".": next, ArrowRight: next, ...ends };
}
