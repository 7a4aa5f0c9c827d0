// One line over all charts at the same step, with what each says there. It is ours and not Plotly's: it moves without any
// chart being drawn.
import { number } from "../lib/format.js";

const GAP_PX = 6;

export class Crosshair {
  #panels; #places = new Map(); #step = null; #frame = 0; #tell;

  constructor(panels, tell) {
    this.#panels = panels;
    this.#tell = tell; // where the step itself is told
  }

  // A box around the plot in which line, words and the stretch that is being chosen stand.
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

  // null: away with it.
  show(step) {
    this.#step = step;
    this.#frame ||= requestAnimationFrame(() => { this.#frame = 0; this.#place(); });
  }

  #place() {
    const shown = [];
    let stretch = null; // of the steps that what is said stands for, where it is more than one
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
    const widths = shown.map(({ words }) => words.offsetWidth); // of all at once: the page is laid out for it only here
    shown.forEach(({ words, left, room }, i) => {
      const x = left > room / 2 ? Math.max(0, left - widths[i] - GAP_PX) : Math.min(left + GAP_PX, room - widths[i]);
      words.style.transform = `translateX(${x}px)`;
    });
    this.#tell(this.#step, stretch);
  }
}

// "0.53"; of several steps also from where to where.
function lineOf({ tone, place: { count, mean, low, high } }) {
  const line = document.createElement("span");
  line.dataset.tone = tone;
  line.append(Object.assign(document.createElement("b"), { textContent: number(mean) }), count > 1 ? ` ${number(low)} to ${number(high)}` : "");
  return line;
}
