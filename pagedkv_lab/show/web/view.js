// One view: the panels around the pool put together, and kept at the source's state.
//
// Knows every panel, and which kind of view has which. Does not know the kernel's messages or the recording.

const PHASE_WORDS = { running: "running", paused: "paused", stopped: "stopped", done: "nothing left to run" };
const REPLAY_WORDS = { running: "playing", paused: "paused", done: "the end" };
const NOTHING_WORDS = { replay: "Unpacking the recording…", watch: "Nothing has run yet." };
const NO_SEQUENCES = {
  playground: "No request yet. Type a prompt and press Add.",
  watch: "No request yet.",
  replay: "No sequences at this step.",
};
const NO_KERNEL = {
  playground: "The kernel is gone, so nothing can run here any more. Run the cell again for a new playground.",
  watch: "The kernel is gone: this is the last picture it sent.",
  pool: "The kernel is gone: this is the last picture it sent.",
};

const WIDE = 760; // CSS px from which on the sequences stand beside the pool
const NARROW = 700; // CSS px up to which the prompt has a row of its own

/**
 * Keep data-width at what CSS lays the view out by. Container queries would say the same in CSS, but in Chromium a
 * view that changes while JupyterLab keeps it off the screen may then stay without its newest text.
 */
function watchWidth(root) {
  const measure = () => {
    const width = root.clientWidth;
    if (width) root.dataset.width = width >= WIDE ? "wide" : width > NARROW ? "medium" : "narrow";
  };
  const observer = new ResizeObserver(measure);
  observer.observe(root);
  measure();
  return () => observer.disconnect();
}

class View {
  /** root: an empty element. colourBy: "sequence" or "state", to begin with. */
  constructor(root, source, colourBy = "sequence") {
    Object.assign(this, { root, source, colourBy, followed: null, pending: 0 });
    this.panels = []; // with draw(state)
    this.controls = []; // with draw()
    this.build();
    this.stops = [
      watchWidth(root),
      watchTheme(() => this.dress()),
      listenToKeys(root, source),
      source.subscribe(() => this.request()),
    ];
    this.dress();
  }

  // Building

  build() {
    const { root, source } = this;
    root.classList.add("pkv");
    root.dataset.kind = source.kind;
    root.tabIndex = -1; // a click beside the controls gives it the keyboard
    setAttribute(root, "role", "group");
    setAttribute(root, "aria-label", "KV pool");
    const title = box(root, "title");
    this.buildTitle(title);
    if (source.kind === "playground") this.buildPlayground(title);
    if (source.kind === "replay") this.controls.push(new ReplayBar(box(root, "replay-bar"), source));
    this.banner = new Banner(box(root, "banner", { role: "alert" }), () => source.setError(null));
    this.nothing = box(root, "nothing");
    this.body = box(root, "body");
    this.buildPool(box(this.body, "left"));
    if (source.kind !== "pool") this.buildSequences(box(this.body, "right"));
    this.announcer = new Announcer(box(root, "live", { "aria-live": "polite" }));
  }

  buildTitle(host) {
    this.parts = element("span", { class: "pkv-parts", hidden: true });
    this.spec = element("span", { class: "pkv-spec" });
    this.status = element("span", { class: "pkv-state" });
    const name = element("span", { class: "pkv-name", role: "heading", "aria-level": "3" }, "KV pool");
    host.append(element("div", { class: "pkv-names" }, name, this.parts, this.spec), this.status);
  }

  buildPlayground(title) {
    const transport = box(title, "transport");
    this.controls.push(new Transport(transport, this.source));
    this.controls.push(new PromptForm(box(this.root, "prompt"), this.source));
    const settings = box(this.root, "settings-panel", { hidden: true });
    this.controls.push(new SettingsPanel(settings, this.source));
    const button = iconButton("settings", "Settings", {
      "aria-expanded": "false",
      onclick: () => {
        settings.hidden = !settings.hidden;
        setAttribute(button, "aria-expanded", String(!settings.hidden));
      },
    });
    transport.append(button);
  }

  buildPool(host) {
    const { source } = this;
    this.pool = new PoolCanvas(box(host, "pool-host"), {
      onFollow: (id) => this.follow(id),
      askDetails: (block) => source.askDetails?.(block),
      onHover: () => {},
    });
    this.pool.setColourBy(this.colourBy);
    this.legend = new Legend(box(host, "legend"), this.colourBy, (colourBy) => this.setColourBy(colourBy));
    this.panels.push(this.pool, this.legend);
    if (source.kind === "pool") return;
    this.baseline = box(host, "baseline");
    this.baselinePanels = [
      new BaselineNumbers(box(this.baseline, "baseline-heading")),
      new RowsCanvas(box(this.baseline, "rows-host")),
    ];
    this.panels.push(
      new Tiles(box(host, "tiles")),
      new HistoryChart(box(host, "history-host")),
      new Log(box(host, "log"), (blocks) => this.pool.highlight(blocks)),
    );
  }

  buildSequences(host) {
    const { source } = this;
    this.cards = new CardList(box(host, "cards"), {
      canAct: source.kind === "playground",
      emptyText: NO_SEQUENCES[source.kind],
      on: {
        resize: () => this.request(),
        follow: (id) => this.follow(id === this.followed ? null : id),
        highlight: (blocks) => this.pool.highlight(blocks),
        fork: (id) => source.fork(id),
        abort: (request) => source.abort(request),
      },
    });
  }

  // What the reader chooses in this view only

  follow(id) {
    this.followed = id;
    this.pool.follow(id);
    this.request();
  }

  setColourBy(colourBy) {
    this.colourBy = colourBy;
    this.pool.setColourBy(colourBy);
    this.legend.repaint();
    this.request();
  }

  // Keeping up

  /** Draw in the next animation frame: several changes at once cost one drawing. */
  request() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    const { source, root } = this;
    const { state, kind } = source;
    Object.assign(root.dataset, { phase: source.phase, running: String(source.running) });
    for (const control of this.controls) control.draw();
    this.drawMessages();
    this.nothing.hidden = state !== null || Boolean(source.error);
    this.body.hidden = state === null;
    setText(this.nothing, NOTHING_WORDS[kind] ?? "Waiting for the kernel's first picture…");
    if (state) this.drawState(state);
  }

  drawState(state) {
    const { root } = this;
    Object.assign(root.dataset, { serial: String(state.serial), step: String(state.step) });
    this.drawNames(state.meta);
    for (const panel of this.panels) panel.draw(state);
    if (this.baseline) this.baseline.hidden = !state.baseline;
    if (state.baseline) for (const panel of this.baselinePanels) panel.draw(state);
    this.cards?.draw(state, { followed: this.followed, canAct: this.source.connected });
    this.announcer.say(this.source.said || stateSentence(state));
  }

  drawNames({ num_blocks: blocks, block_size: size, block_bytes: bytes, model, caching, parts }) {
    const words = [`${withCommas(blocks)} blocks × ${size} tokens`, binarySize(blocks * bytes), model];
    if (!caching) words.push("prefix cache off");
    setText(this.spec, words.join(" · "));
    setText(this.parts, parts.length ? `your ${parts.join(", ")}` : "");
    this.parts.hidden = !parts.length;
  }

  drawMessages() {
    const { source, root } = this;
    const { connected, error, state, isLate, settings } = source;
    const noKernel = connected ? null : NO_KERNEL[source.kind];
    this.banner.draw(noKernel ?? error, !noKernel && source.kind !== "replay");
    root.dataset.connected = String(connected);
    root.dataset.late = String(Boolean(isLate));
    const words = source.kind === "replay" ? REPLAY_WORDS : PHASE_WORDS;
    const idle = state?.step ? "idle" : "nothing run yet";
    const phase = settings?.busy || (isLate ? "waiting for the kernel" : (words[source.phase] ?? idle));
    setText(this.status, state && source.kind !== "replay" ? `step ${withCommas(state.step)} · ${phase}` : phase);
  }

  /** Another theme. CSS takes its colours from data-theme, so that both agree on what is dark. */
  dress() {
    this.root.dataset.theme = isDark() ? "dark" : "light";
    this.legend.repaint();
    this.request();
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    for (const stop of this.stops) stop();
    this.announcer.destroy();
    this.cards?.destroy();
    for (const panel of [...this.panels, ...(this.baselinePanels ?? [])]) panel.destroy?.();
    this.root.remove();
  }
}
