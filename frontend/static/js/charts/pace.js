// The x axis that all charts share. The axes of tokens and time need extra data, which is fetched when one of them is
// selected, and again while the job runs.
import { bucketsOf } from "../lib/series.js";
import { axisOf, BY_STEP } from "./axis.js";
import { fetchSeries } from "./detail.js";

const KEYS = { tokens: "train/tokens", time: "trainer/step_s" };
const AGAIN_AFTER_MS = 10_000;

export class Pace {
  #room; #onFound; #axes = new Map(); #asked = new Map();
  version = 0;

  constructor(room, onFound) {
    this.#room = room;
    this.#onFound = onFound;
  }

  get now() { return this.#axes.get(this.#room.view.now.axis) ?? BY_STEP; }

  // For the selected axis; false: not available for this job, and charts use steps.
  ask() {
    const { axis } = this.#room.view.now, before = this.#asked.get(axis);
    if (axis === "step") return Promise.resolve(true);
    if (performance.now() - (before?.at ?? -Infinity) < AGAIN_AFTER_MS) return before.answer;
    const answer = this.#find(axis);
    this.#asked.set(axis, { at: performance.now(), answer });
    return answer;
  }

  async #find(axis) {
    const told = await fetchSeries(this.#room.address, { names: [KEYS[axis]], times: axis === "time" }).catch(() => null);
    const knots = told === null ? [] : axis === "tokens" ? tokensOf(told) : timesOf(told);
    if (knots.length < 2) return this.#axes.has(axis);
    this.#axes.set(axis, axisOf(axis, knots));
    this.version++;
    this.#onFound();
    return true;
  }
}

// Tokens trained on by the end of each step: the sum over a range is its mean times its count.
export function tokensOf({ series, bands, counts }) {
  let sum = 0;
  const line = bucketsOf(series[KEYS.tokens] ?? [], bands[KEYS.tokens], counts[KEYS.tokens]);
  return line.length ? [[line[0].from - 1, 0], ...line.map(({ to, count, mean }) => [to, sum += count * mean])] : [];
}

// Seconds since the first known step.
export function timesOf({ series, times }) {
  const key = KEYS.time, known = (series[key] ?? []).map(([step], i) => [step, Date.parse(times[key]?.[i])]).filter(([, at]) => !Number.isNaN(at));
  const began = known[0]?.[1], rising = [];
  for (const [step, at] of known) if (!rising.length || at > rising.at(-1)[1] + began) rising.push([step, at - began]);
  return rising.map(([step, ms]) => [step, ms / 1000]);
}
