// How all charts of a page are looked at: which axis, how smooth, on which scale, which steps. It stands in the address, so
// that who is sent the address sees the same.
export const AXES = ["step", "tokens", "time"];
const count = (text) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : null);

export function readView(search) {
  const asked = new URLSearchParams(search);
  const [from, to] = [count(asked.get("from")), count(asked.get("to"))];
  const isRange = from !== null && to !== null && from < to;
  const smooth = count(asked.get("smooth"));
  return {
    axis: AXES.includes(asked.get("axis")) ? asked.get("axis") : "step",
    smooth, // the half-life in steps; 0: none, null: as the range asks for
    log: asked.get("scale") === "log",
    from: isRange ? from : null, to: isRange ? to : null,
  };
}

// What is as usual is left out, and what else stands in the address stays.
export function writeView({ axis, smooth, log, from, to }, search) {
  const said = new URLSearchParams(search);
  const wanted = { axis: axis === "step" ? null : axis, smooth, scale: log ? "log" : null, from, to };
  for (const [name, value] of Object.entries(wanted)) if (value === null) said.delete(name); else said.set(name, value);
  return said.size ? `?${said}` : "";
}

export class View {
  #now = readView(location.search);
  #listeners = [];
  version = 0;

  get now() { return this.#now; }

  get isZoomed() { return this.#now.from !== null; }

  onChange(listener) { this.#listeners.push(listener); }

  set(changes) {
    this.#now = { ...this.#now, ...changes };
    this.version++;
    history.replaceState(null, "", location.pathname + writeView(this.#now, location.search) + location.hash);
    for (const listener of this.#listeners) listener(this.#now);
  }

  // `extent`: of what there is. The end leaves a little room, so that a new step does not move every chart.
  range([first, last]) {
    if (this.isZoomed) return [this.#now.from, this.#now.to];
    if (!(last > 0)) return [0, 1];
    const unit = Math.max(1, 10 ** Math.floor(Math.log10(last)) / 5);
    return [first < last / 2 ? 0 : first - 1, Math.ceil(last / unit) * unit];
  }

  // Smooth enough to see where it goes, of the steps that are seen: a fortieth of them, rounded to 1, 2 or 5.
  halfLife([from, to]) {
    if (this.#now.smooth !== null) return this.#now.smooth;
    const wanted = (to - from) / 40;
    if (wanted < 1) return 0;
    const unit = 10 ** Math.floor(Math.log10(wanted));
    return unit * [1, 2, 5, 10].findLast((each) => each * unit <= wanted);
  }
}
