// One chart. Drawn when it is visible and has changed, with half as many buckets as pixels.
import { merged, nearest, within } from "./buckets.js";
import { CONFIG, layoutOf, MARGIN } from "./layout.js";
import { isAlike, isTiny, likenessOf } from "./likeness.js";
import { smoothed } from "./smooth.js";
import { isCut, tracesOf } from "./traces.js";

export class Panel {
  #room; #watching; #seen = false; #drawn = null; #lines = new Map(); #range = [0, 1];

  // `room`: shared by all charts of a page, { store, view, queue, palette, axis, detail, marks }.
  constructor(plot, room) {
    this.plot = plot;
    this.#room = room;
    this.traces = JSON.parse(plot.dataset.traces);
    this.#watching = [
      new IntersectionObserver(([entry]) => { this.#seen = entry.isIntersecting; this.changed(); }, { rootMargin: "120px" }),
      new ResizeObserver(() => this.changed({ soon: true })),
    ];
    for (const each of this.#watching) each.observe(plot);
  }

  end() {
    for (const each of this.#watching) each.disconnect();
    this.#room.queue.forget(this);
    window.Plotly.purge(this.plot);
  }

  get names() { return this.traces.map(({ key }) => key); }

  // Redraws if something has changed.
  changed({ soon = false } = {}) {
    if (!this.#seen) return;
    this.#room.detail.want(this.names);
    const now = this.#likeness(), [from, to] = this.#range;
    if (!isAlike(this.#drawn, now)) this.#room.queue.ask(this, { soon, isTiny: isTiny(this.#drawn, now, this.#width / (to - from || 1)) });
  }

  #likeness() { return likenessOf(this.#room, this.names, this.plot); }

  draw() {
    const { view, store } = this.#room;
    if (!this.plot.clientWidth) return; // hidden meanwhile: Plotly would use 700 pixels; the resize observer queues it again
    this.#drawn = this.#likeness();
    this.#range = view.range(store.extent());
    for (const { key, marks } of this.traces) this.#lines.set(key, this.#places(key, marks));
    const isBlank = [...this.#lines.values()].every((each) => each.length === 0);
    this.plot.classList.toggle("blank", isBlank);
    this.plot.classList.toggle("cut", [...this.#lines.values()].some((each) => isCut(each, view.now.log)));
    if (isBlank) window.Plotly.purge(this.plot);
    else window.Plotly.react(this.plot, this.traces.flatMap((trace) => this.#tracesOf(trace)), layoutOf(this.plot, this.#range, [...this.#lines.values()].flat(), this.#room), CONFIG);
  }

  // Smooths over all points, then selects the visible ones.
  #places(key, isMarks) {
    const { view, store, detail } = this.#room;
    const [from, to] = this.#range, halfLife = view.halfLife(this.#range);
    const known = detail.buckets(key) ?? store.buckets(key);
    if (isMarks) return known.filter((each) => each.to >= from && each.from <= to);
    const around = within(known, from - 4 * halfLife, to);
    const most = Math.floor((this.#width / 2) * Math.max(1, around.length / (within(known, from, to).length || 1)));
    const places = merged(around, Math.max(2, most));
    const smooth = halfLife ? smoothed(places, halfLife) : null;
    return within(smooth ? places.map((each, i) => ({ ...each, smooth: smooth[i] })) : places, from, to);
  }

  #tracesOf(trace) {
    const { axis, view, palette } = this.#room;
    return tracesOf(this.#lines.get(trace.key), trace, { axis: axis.now, log: view.now.log, colours: palette });
  }

  // The nearest known bucket of each series at a step.
  at(step) { return this.traces.map(({ key, label, tone }) => ({ label, tone, place: this.#lines.get(key)?.length ? nearest(this.#lines.get(key), step) : null })); }

  // As drawn, or as it would be if visible.
  get shown() { return this.traces.map(({ key, label }) => ({ label, places: this.#lines.get(key) ?? this.#room.store.buckets(key) })); }

  // Conversion to pixels from the left of the plot, and back.
  left(step) { const { at } = this.#room.axis.now, [x0, x1] = this.#range.map(at); return MARGIN.l + ((at(step) - x0) / (x1 - x0)) * this.#width; }

  stepAt(left) { const { at, stepAt } = this.#room.axis.now, [x0, x1] = this.#range.map(at); return stepAt(x0 + ((left - MARGIN.l) / this.#width) * (x1 - x0)); }

  get range() { return this.#range; }

  get #width() { return this.plot.clientWidth - MARGIN.l - MARGIN.r; }
}
