// The view of all charts of a page: axis, smoothing, scale and range of steps. It is in the URL, so that a shared URL shows
// the same view.
export const AXES = ["step", "tokens", "time"];
const count = (text) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : null);

export function readView(search) {
  const asked = new URLSearchParams(search);
  const [from, to] = [count(asked.get("from")), count(asked.get("to"))];
  const isRange = from !== null && to !== null && from < to;
  const smooth = count(asked.get("smooth"));
  return {
    axis: AXES.includes(asked.get("axis")) ? asked.get("axis") : "step",
    smooth, // the half-life in steps; 0: none, null: automatic
    log: asked.get("scale") === "log",
    from: isRange ? from : null, to: isRange ? to : null,
  };
}

// Omits defaults, and keeps other parameters of the URL.
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

  // `extent`: of the data. Leaves some room at the end, so that a new step does not move every chart.
  range([first, last]) {
    if (this.isZoomed) return [this.#now.from, this.#now.to];
    if (!(last > 0)) return [0, 1];
    const unit = Math.max(1, 10 ** Math.floor(Math.log10(last)) / 5);
    return [first < last / 2 ? 0 : first - 1, Math.ceil(last / unit) * unit];
  }

  // Automatic smoothing: a fortieth of the visible steps, rounded to 1, 2 or 5.
  halfLife([from, to]) {
    if (this.#now.smooth !== null) return this.#now.smooth;
    const wanted = (to - from) / 40;
    if (wanted < 1) return 0;
    const unit = 10 ** Math.floor(Math.log10(wanted));
    return unit * [1, 2, 5, 10].findLast((each) => each * unit <= wanted);
  }
}
