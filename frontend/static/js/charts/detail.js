// Detail of a range of steps beyond the page's own data: fetched on zoom, for all visible charts in one request.
import { bucketsOf } from "../lib/series.js";

const GATHER_MS = 40;

export class Detail {
  #room; #found = new Map(); #wanted = new Set(); #range = ""; #timer = 0; #going = null; #version = 0; #onFound;

  // `onFound(names)`: series to redraw.
  constructor(room, onFound) {
    this.#room = room;
    this.#onFound = onFound;
  }

  version(name) { return this.#found.get(name)?.version ?? 0; }

  // The detail of this range, with newer points; else nothing.
  buckets(name) {
    const { store, view } = this.#room, found = this.#found.get(name);
    if (!view.isZoomed || this.#range !== rangeOf(view) || !found?.buckets) return null;
    return [...found.buckets, ...store.buckets(name).filter(({ from, to }) => from > found.upto && to <= view.now.to)];
  }

  // The visible series. Fetches those that are not known step by step.
  want(names) {
    const { store, view } = this.#room;
    if (!view.isZoomed) return;
    this.#follow();
    const { from, to } = view.now;
    for (const name of names) {
      const isCoarse = store.buckets(name).some((each) => each.count > 1 && each.to >= from && each.from <= to);
      if (isCoarse && !this.#found.has(name)) this.#ask(name);
    }
  }

  #follow() {
    const range = rangeOf(this.#room.view);
    if (range === this.#range) return;
    this.#range = range;
    this.#going?.abort();
    this.#found.clear();
    this.#wanted.clear();
  }

  #ask(name) {
    this.#wanted.add(name);
    this.#timer ||= setTimeout(() => { this.#timer = 0; this.#fetch(); }, GATHER_MS);
  }

  async #fetch() {
    const names = [...this.#wanted], { view } = this.#room, range = this.#range;
    this.#wanted.clear();
    if (!names.length || !view.isZoomed) return;
    for (const name of names) this.#found.set(name, {});
    const around = 4 * view.halfLife([view.now.from, view.now.to]); // the input of the smoothed line
    this.#going = new AbortController();
    try {
      const answer = await fetchSeries(this.#room.address, { names, from: Math.max(0, view.now.from - around), to: view.now.to }, this.#going.signal);
      if (range !== this.#range) return;
      for (const name of names) {
        const buckets = bucketsOf(answer.series[name] ?? [], answer.bands[name], answer.counts[name]);
        this.#found.set(name, { buckets, upto: buckets.at(-1)?.to ?? -1, version: ++this.#version });
      }
      this.#onFound(names);
    } catch {
      if (range === this.#range) for (const name of names) this.#found.delete(name); // fetched again on the next drawing
    }
  }
}

const rangeOf = ({ now: { from, to } }) => `${from}-${to}`;

export async function fetchSeries(address, { names, from, to, points = 500, times = false }, signal) {
  const asked = new URLSearchParams([...names.map((name) => ["names", name]), ["max_points", points]]);
  if (from !== undefined) { asked.set("from_step", Math.floor(from)); asked.set("to_step", Math.ceil(to)); }
  if (times) asked.set("times", "1");
  const answer = await fetch(`${address}?${asked}`, { headers: { Accept: "application/json" }, signal });
  if (!answer.ok) throw Object.assign(new Error(`${answer.status}`), { status: answer.status });
  return answer.json();
}
