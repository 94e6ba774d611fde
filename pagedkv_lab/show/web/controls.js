// The playground's controls: Run, Pause, Step, speed; a prompt to add; settings that rebuild the engine.
//
// Knows a LiveSource, which it tells what the reader wants. Does not know the pool, nor how steps are pulled.

/** Run or Pause (one button), Step, and the speed: they stand in the title row. */
class Transport {
  constructor(host, source) {
    this.source = source;
    this.toggleText = element("span", { class: "pkv-button-text" });
    this.toggle = element("button", { type: "button", class: "pkv-go", onclick: () => this.pressToggle() });
    this.icons = { run: icon("run"), pause: icon("pause") };
    this.toggle.append(this.icons.run, this.icons.pause, this.toggleText);
    const step = { class: "pkv-step", title: "one step, then pause ( . )", onclick: () => source.loop.step() };
    this.step = iconButton("step", "Step", step);
    this.speed = new SpeedSlider(source.loop.speed, "step", (position) => source.loop.setSpeed(position));
    host.append(this.toggle, this.step, this.speed.node);
  }

  pressToggle() {
    const { loop } = this.source;
    if (loop.running) loop.pause();
    else loop.run();
  }

  draw() {
    const { running, connected, settings, loop } = this.source;
    setText(this.toggleText, running ? "Pause" : "Run");
    setAttribute(this.icons.run, "hidden", running);
    setAttribute(this.icons.pause, "hidden", !running);
    setAttribute(this.toggle, "aria-pressed", String(running));
    setAttribute(this.toggle, "title", running ? "stop after this step (space)" : "step after step (space)");
    this.toggle.disabled = this.step.disabled = !connected || Boolean(settings.busy);
    this.speed.draw(loop.speed);
  }
}

/** One of SPEEDS; noun: of what so many come in a second. */
class SpeedSlider {
  constructor(position, noun, onChange) {
    this.noun = noun;
    this.input = element("input", {
      type: "range",
      min: 0,
      max: SPEEDS.length - 1,
      step: 1,
      "aria-label": "speed",
      oninput: () => onChange(Number(this.input.value)),
    });
    this.label = element("span", { class: "pkv-speed-label", "aria-hidden": "true" });
    this.node = element("label", { class: "pkv-speed" }, "speed", this.input, this.label);
    this.draw(position);
  }

  draw(position) {
    if (Number(this.input.value) !== position) this.input.value = position;
    setAttribute(this.input, "aria-valuetext", speedLabel(position, this.noun));
    setText(this.label, speedLabel(position, this.noun));
  }
}

/** The prompt, with how long and how many the answers may be, and suggestions to start from. */
class PromptForm {
  constructor(host, source) {
    this.source = source;
    this.sent = null; // text that is on its way
    this.prompt = element("input", {
      type: "text",
      class: "pkv-prompt-input",
      placeholder: "Type a prompt, or take one from below",
      "aria-label": "prompt",
      autocomplete: "off",
      oninput: () => this.draw(),
    });
    this.maxTokens = element("input", { type: "number", min: 1, max: 4096, value: source.settings.max_tokens ?? 64 });
    this.outputs = numberChoice([1, 2, 3, 4]);
    this.button = element("button", { type: "submit", class: "pkv-add" }, "Add");
    const clear = { type: "button", title: "Drop every request, and empty the pool.", onclick: () => source.clear() };
    this.clear = element("button", clear, "Clear");
    const maxTokens = element("label", { title: "Longest answer, in tokens." }, "max tokens", this.maxTokens);
    const sharing = { title: "Answers to this prompt; they share its blocks." };
    const outputs = element("label", sharing, "outputs", this.outputs);
    const form = element("form", { class: "pkv-ask", onsubmit: (event) => this.submit(event) });
    form.append(this.prompt, maxTokens, outputs, this.button, this.clear);
    this.suggestions = element("div", { class: "pkv-suggestions", role: "group", "aria-label": "suggested prompts" });
    host.append(form, this.suggestions);
    this.suggest(source.settings.suggestions ?? []);
  }

  suggest(prompts) {
    this.suggestions.replaceChildren(
      ...prompts.map((prompt) => {
        const text = middleCutText("");
        text.setTo(prompt);
        return element("button", { type: "button", title: prompt, onclick: () => this.take(prompt) }, text.node);
      }),
    );
    this.suggestions.hidden = !prompts.length;
  }

  take(prompt) {
    this.prompt.value = prompt;
    this.prompt.focus();
    this.draw();
  }

  submit(event) {
    event.preventDefault();
    const prompt = this.prompt.value;
    if (!this.canAdd()) return;
    this.sent = prompt;
    this.prompt.focus(); // the button is about to be switched off
    this.source.add(prompt, Math.max(1, this.maxTokens.valueAsNumber || 1), Number(this.outputs.value));
  }

  canAdd() {
    const { connected, adding, settings } = this.source;
    return connected && adding === null && !settings.busy && this.prompt.value.trim() !== "";
  }

  draw() {
    const { adding, connected, error } = this.source;
    if (this.sent !== null && adding === null) this.arrived(error);
    setText(this.button, adding === null ? "Add" : "Adding…");
    setAttribute(this.button, "aria-busy", adding !== null);
    this.button.disabled = !this.canAdd();
    this.clear.disabled = !connected;
  }

  /** The prompt is in the engine: room for the next one. Refused ones stay, to be changed. */
  arrived(error) {
    if (!error && this.prompt.value === this.sent) this.prompt.value = "";
    this.sent = null;
  }
}

function numberChoice(numbers) {
  return element("select", {}, ...numbers.map((number) => element("option", { value: number }, String(number))));
}

const REBUILD_HINT = "Apply rebuilds the engine: sequences are dropped, and their prompts start again.";

/** Settings that take effect by building another engine. */
class SettingsPanel {
  constructor(host, source) {
    Object.assign(this, { host, source, shown: "" });
    this.fields = {
      block_size: element("select"),
      num_gpu_blocks: element("select"),
      enable_prefix_caching: element("input", { type: "checkbox" }),
      baseline: element("input", { type: "checkbox" }),
    };
    this.apply = element("button", { type: "submit" }, "Apply");
    const { block_size: size, num_gpu_blocks: blocks, enable_prefix_caching: caching, baseline } = this.fields;
    const form = element("form", { class: "pkv-settings", onsubmit: (event) => this.submit(event) });
    form.append(
      element("label", {}, "block size", size),
      element("label", {}, "pool", blocks),
      element("label", {}, caching, "prefix cache"),
      element("label", {}, baseline, "contiguous baseline beside it"),
      this.apply,
      element("span", { class: "pkv-hint" }, REBUILD_HINT),
    );
    host.append(form);
  }

  /** Show the engine's settings as they are; what the reader is changing is left alone until they change. */
  draw() {
    const { settings, connected, state } = this.source;
    this.apply.disabled = !connected || Boolean(settings.busy);
    const key = JSON.stringify([settings, state?.meta.block_bytes]);
    if (key === this.shown) return;
    this.shown = key;
    const { block_size: size, num_gpu_blocks: blocks, enable_prefix_caching: caching, baseline } = this.fields;
    const bytesOfSlot = state ? state.meta.block_bytes / state.meta.block_size : 0;
    fillChoice(size, settings.block_sizes, settings.block_size, (tokens) => plural(tokens, "token"));
    fillChoice(blocks, settings.pool_sizes, settings.num_gpu_blocks, (count) => {
      return `${plural(count, "block")} · ${binarySize(count * settings.block_size * bytesOfSlot)}`;
    });
    caching.checked = settings.enable_prefix_caching;
    baseline.checked = settings.baseline;
  }

  submit(event) {
    event.preventDefault();
    this.source.rebuild({
      block_size: Number(this.fields.block_size.value),
      num_gpu_blocks: Number(this.fields.num_gpu_blocks.value),
      enable_prefix_caching: this.fields.enable_prefix_caching.checked,
      baseline: this.fields.baseline.checked,
    });
  }
}

/** Options for the numbers; the present one is there even where it is none of the usual ones. */
function fillChoice(select, numbers, present, label) {
  const all = [...new Set([...(numbers ?? []), present])].sort((one, other) => one - other);
  select.replaceChildren(...all.map((number) => element("option", { value: number }, label(number))));
  select.value = present;
}
