// Reading trajectories, one step at a time. Whoever looks at an older step is not pulled away from it.
import { change, number, reward } from "../lib/format.js";

const MOST_STEPS = 200; // of this visit; the API has the rest

export class TrajectoryReader {
  #steps = new Map(); #at = null; #low = 0; #high = 1; #places;

  constructor(section) {
    const find = (what) => section.querySelector(what);
    this.#places = { list: find("[data-samples]"), title: find("[data-reading-step]"), follow: find("[data-follow]"), older: find("[data-older]"), newer: find("[data-newer]"), template: find("#sample") };
    this.#places.older.addEventListener("click", () => this.#move(-1));
    this.#places.newer.addEventListener("click", () => this.#move(1));
    this.#places.follow.addEventListener("change", () => { if (this.#places.follow.checked) this.#open(this.#order().at(-1)); });
  }

  add(samples) {
    const touched = new Set();
    for (const sample of samples) {
      const step = this.#steps.get(sample.step) ?? new Map();
      step.set(`${sample.prompt_ordinal}/${sample.sample}`, sample);
      this.#steps.set(sample.step, step);
      touched.add(sample.step);
      this.#low = Math.min(this.#low, sample.reward);
      this.#high = Math.max(this.#high, sample.reward);
    }
    const order = this.#order();
    for (const old of order.slice(0, -MOST_STEPS)) if (old !== this.#at) this.#steps.delete(old);
    const newest = order.at(-1);
    if (this.#places.follow.checked && touched.has(newest)) this.#open(newest);
    else this.#showButtons();
  }

  // The step that was asked for, or the nearest one that has something to read.
  show(step) {
    const nearest = this.#order().reduce((best, each) => (best === null || Math.abs(each - step) < Math.abs(best - step) ? each : best), null);
    if (nearest === null) return;
    this.#places.follow.checked = nearest === this.#order().at(-1) && this.#places.follow.checked;
    this.#open(nearest);
    this.#places.title.scrollIntoView({ block: "center", behavior: "smooth" });
  }

  #order() { return [...this.#steps.keys()].sort((a, b) => a - b); }

  #move(by) {
    const order = this.#order();
    const next = order[order.indexOf(this.#at) + by];
    if (next === undefined) return;
    this.#places.follow.checked = false;
    this.#open(next);
  }

  #open(step) {
    if (step === undefined) return;
    this.#at = step;
    const samples = [...this.#steps.get(step).values()].sort((a, b) => b.reward - a.reward || a.prompt_ordinal - b.prompt_ordinal || a.sample - b.sample);
    this.#places.title.textContent = `Step ${number(step)}`;
    this.#places.list.replaceChildren(...samples.map((sample) => this.#drawn(sample)));
    this.#showButtons();
  }

  #showButtons() {
    const order = this.#order(), index = order.indexOf(this.#at);
    this.#places.older.disabled = index <= 0;
    this.#places.newer.disabled = index === -1 || index === order.length - 1;
  }

  #drawn(sample) {
    const card = this.#places.template.content.cloneNode(true).querySelector(".sample");
    const shown = { ...sample, reward: reward(sample.reward), advantage: change(sample.advantage) };
    for (const place of card.querySelectorAll("[data-field]")) place.textContent = shown[place.dataset.field];
    const share = (sample.reward - this.#low) / (this.#high - this.#low || 1);
    card.dataset.tone = share > 2 / 3 ? "high" : share < 1 / 3 ? "low" : "middle";
    return card;
  }
}
