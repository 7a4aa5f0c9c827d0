// The charts of a job's page: shared state, the control bar, and updates.
import { Crosshair } from "../charts/crosshair.js";
import { Detail } from "../charts/detail.js";
import { Marks } from "../charts/marks.js";
import { Pace } from "../charts/pace.js";
import { palette } from "../charts/palette.js";
import { Panel } from "../charts/panel.js";
import { listen } from "../charts/pointing.js";
import { DrawQueue } from "../charts/queue.js";
import { View } from "../charts/view.js";
import { spanText } from "../charts/axis.js";
import { number } from "../lib/format.js";
import { onThemeChange } from "../lib/theme.js";
import { wireSaving } from "./saving.js";

export class Curves {
  #panels = new Set(); #bar = document.querySelector("[data-curves-bar]"); #crosshair; #onStep;

  // `marks`: events marked on the axis so far. `address`: the URL of the series, for detail.
  constructor(store, { marks, name, address, onStep }) {
    this.#onStep = onStep;
    const room = this.room = { store, name, address, view: new View(), queue: new DrawQueue(), palette: palette(), marks: new Marks() };
    room.axis = new Pace(room, () => this.redraw());
    room.detail = new Detail(room, () => this.redraw());
    room.marks.add(marks);
    this.#crosshair = new Crosshair(() => this.#panels, (step, stretch) => this.#tellStep(step, stretch));
    room.view.onChange(() => { this.#showView(); this.#askAxis(); this.redraw(); });
    onThemeChange(() => { room.palette = palette(); this.redraw(); });
    if (this.#bar) this.#wireBar();
    wireSaving(room, (plot) => [...this.#panels].find((each) => each.plot === plot));
    this.#showView();
    for (const plot of document.querySelectorAll("[data-plot]")) this.add(plot);
    this.#askAxis();
  }

  add(plot) {
    const panel = new Panel(plot, this.room);
    listen(panel, this.#crosshair.dress(panel), { crosshair: this.#crosshair, view: this.room.view, onStep: this.#onStep, extent: () => this.room.store.extent() });
    this.#panels.add(panel);
    return panel;
  }

  remove(panel) {
    this.#panels.delete(panel);
    panel.end();
  }

  // Newer points are in the store already.
  news(events) {
    this.room.marks.add(events);
    this.#askAxis();
    for (const panel of this.#panels) panel.changed();
  }

  async #askAxis() {
    const isKnown = await this.room.axis.ask();
    if (this.#bar) this.#bar.querySelector("[data-axis-refused]").textContent = isKnown ? "" : "not available for this job; showing steps";
  }

  redraw() { for (const panel of this.#panels) panel.changed({ soon: true }); }

  #wireBar() {
    const { axis, smooth, log } = this.#bar.elements;
    axis.addEventListener("change", () => this.room.view.set({ axis: axis.value }));
    smooth.addEventListener("change", () => this.room.view.set({ smooth: smooth.value === "" ? null : Number(smooth.value) }));
    log.addEventListener("change", () => this.room.view.set({ log: log.checked }));
    this.#bar.addEventListener("submit", (event) => event.preventDefault());
    this.#bar.querySelector("[data-range-all]").addEventListener("click", () => this.room.view.set({ from: null, to: null }));
  }

  #showView() {
    if (!this.#bar) return;
    const { axis, smooth, log, from, to } = this.room.view.now, { elements } = this.#bar;
    elements.axis.value = axis;
    elements.log.checked = log;
    const wanted = smooth === null ? "" : `${smooth}`;
    if (![...elements.smooth.options].some(({ value }) => value === wanted)) elements.smooth.add(new Option(`${wanted} steps`, wanted));
    elements.smooth.value = wanted;
    this.#bar.querySelector("[data-range]").hidden = from === null;
    this.#bar.querySelector("[data-range-words]").textContent = from === null ? "" : `steps ${number(from)} to ${number(to)}`;
  }

  #tellStep(step, stretch) {
    const { now } = this.room.axis, place = this.#bar?.querySelector("[data-there]");
    if (!place) return;
    if (step === null) { place.textContent = ""; return; }
    const also = { step: "", time: ` · ${spanText(now.at(step))}`, tokens: ` · ${number(Math.round(now.at(step)))} tokens` }[now.name];
    place.textContent = (stretch ? `steps ${number(stretch.from)} to ${number(stretch.to)}` : `step ${number(step)}`) + also;
  }
}
