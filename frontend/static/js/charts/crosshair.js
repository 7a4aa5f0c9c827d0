// A line over all charts at the same step, with each chart's values. Drawn without Plotly, so it moves without a redraw of
// any chart.
import { number } from "../lib/format.js";

const GAP_PX = 6;

export class Crosshair {
  #panels; #places = new Map(); #step = null; #frame = 0; #tell;

  constructor(panels, tell) {
    this.#panels = panels;
    this.#tell = tell; // shows the step
  }

  // A box around the plot for the line, the values and the selected range.
  dress(panel) {
    const [box, line, words, chosen] = ["div", "i", "output", "i"].map((name) => document.createElement(name));
    box.className = "plot-box";
    [line.className, words.className, chosen.className] = ["hair", "there", "chosen"];
    line.hidden = words.hidden = chosen.hidden = true;
    words.setAttribute("aria-live", "off");
    panel.plot.replaceWith(box);
    box.append(panel.plot, chosen, line, words);
    this.#places.set(panel, { box, line, words, chosen });
    return { box, chosen };
  }

  get step() { return this.#step; }

  // null: hides the crosshair.
  show(step) {
    this.#step = step;
    this.#frame ||= requestAnimationFrame(() => { this.#frame = 0; this.#place(); });
  }

  #place() {
    const shown = [];
    let stretch = null; // the range of steps of the values, if more than one
    for (const panel of this.#panels()) {
      const { box, line, words } = this.#places.get(panel);
      const left = this.#step === null ? -1 : panel.left(this.#step);
      const isThere = left >= panel.left(panel.range[0]) - 1 && left <= panel.left(panel.range[1]) + 1 && !panel.plot.classList.contains("blank");
      line.hidden = words.hidden = !isThere;
      if (!isThere) continue;
      const said = panel.at(this.#step).filter(({ place }) => place);
      stretch ??= said.find(({ place }) => place.count > 1)?.place ?? null;
      words.replaceChildren(...said.map(lineOf));
      line.style.transform = `translateX(${left}px)`;
      shown.push({ words, left, room: box.clientWidth });
    }
    const widths = shown.map(({ words }) => words.offsetWidth); // all at once, so that only one layout is forced
    shown.forEach(({ words, left, room }, i) => {
      const x = left > room / 2 ? Math.max(0, left - widths[i] - GAP_PX) : Math.min(left + GAP_PX, room - widths[i]);
      words.style.transform = `translateX(${x}px)`;
    });
    this.#tell(this.#step, stretch);
  }
}

// "0.53"; for several steps also the range.
function lineOf({ tone, place: { count, mean, low, high } }) {
  const line = document.createElement("span");
  line.dataset.tone = tone;
  line.append(Object.assign(document.createElement("b"), { textContent: number(mean) }), count > 1 ? ` ${number(low)} to ${number(high)}` : "");
  return line;
}
