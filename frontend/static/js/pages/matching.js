// Charts of the series whose names match the typed expression. Their points are fetched when a chart is first shown, and
// updated like all others from then on.
import { fetchSeries } from "../charts/detail.js";
import { number } from "../lib/format.js";

const A_PAGE = 12;

export class Matching {
  #part; #field; #curves; #store; #names; #shown = new Map(); #most = A_PAGE; #asked = new Set();

  constructor(part, curves, names) {
    [this.#part, this.#curves, this.#store] = [part, curves, curves.room.store];
    this.#names = new Set(names);
    this.#field = part.querySelector("[name=matching]");
    this.#field.value = new URLSearchParams(location.search).get("matching") ?? "";
    this.#field.addEventListener("input", () => { this.#most = A_PAGE; this.#putInAddress(); this.#show(); });
    part.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    part.querySelector("[data-more]").addEventListener("click", () => { this.#most += A_PAGE; this.#show(); });
    part.addEventListener("toggle", () => this.#show());
    if (this.#field.value) part.open = true;
    this.#show();
  }

  // Adds new names, if any.
  news(names) {
    const before = this.#names.size;
    for (const name of names) this.#names.add(name);
    if (this.#names.size > before) this.#show();
  }

  #show() {
    if (!this.#part.open) return;
    const found = matching(this.#field.value, [...this.#names].sort());
    this.#part.querySelector("[data-refused]").textContent = found === null ? "Not a valid regular expression." : "";
    if (found === null) return;
    this.#part.querySelector("[data-found]").textContent = `${number(found.length)} of ${number(this.#names.size)}`;
    const seen = found.slice(0, this.#most), more = this.#part.querySelector("[data-more]");
    more.hidden = found.length <= this.#most;
    more.textContent = `Show ${Math.min(A_PAGE, found.length - seen.length)} more`;
    for (const [name, { figure, panel }] of this.#shown) if (!seen.includes(name)) { this.#curves.remove(panel); figure.remove(); this.#shown.delete(name); }
    const place = this.#part.querySelector("[data-matching]");
    for (const name of seen) {
      const known = this.#shown.get(name);
      place.append(known ? known.figure : this.#make(name));
    }
    for (const name of seen) if (!this.#shown.get(name).panel) this.#shown.get(name).panel = this.#curves.add(this.#shown.get(name).figure.querySelector("[data-plot]"));
    this.#fetch(seen.filter((name) => !this.#asked.has(name)));
  }

  #make(name) {
    const figure = document.getElementById("matching-panel").content.cloneNode(true).firstElementChild;
    const plot = figure.querySelector("[data-plot]"), save = figure.querySelector("[popover]");
    figure.querySelector("h2 code").textContent = name;
    figure.dataset.chart = figure.querySelector("[data-last]").dataset.last = name;
    figure.querySelector("[data-last]").textContent = number(this.#store.buckets(name).at(-1)?.mean);
    plot.dataset.traces = JSON.stringify([{ key: name, label: name, tone: "first", marks: false }]);
    plot.setAttribute("aria-label", name);
    save.id = `save-series-${[...this.#names].indexOf(name)}`;
    figure.querySelector("[popovertarget]").setAttribute("popovertarget", save.id);
    figure.querySelector("[popovertarget]").setAttribute("aria-label", `Save ${name}`);
    this.#shown.set(name, { figure, panel: null });
    return figure;
  }

  async #fetch(names) {
    if (!names.length) return;
    for (const name of names) this.#asked.add(name);
    const isAsBefore = this.#store.sinceCut();
    try {
      const answer = await fetchSeries(this.#curves.room.address, { names, points: 500 });
      if (!isAsBefore()) throw new Error("the run went back meanwhile");
      this.#store.replace(answer);
      for (const name of names) this.#shown.get(name)?.figure.querySelector("[data-last]").replaceChildren(number(answer.series[name]?.at(-1)?.[1]));
      this.#curves.redraw();
    } catch {
      for (const name of names) this.#asked.delete(name); // fetched again on the next display
    }
  }

  #putInAddress() {
    const said = new URLSearchParams(location.search);
    if (this.#field.value) said.set("matching", this.#field.value); else said.delete("matching");
    history.replaceState(null, "", location.pathname + (said.size ? `?${said}` : "") + location.hash);
  }
}

// null: not a valid regular expression.
export function matching(typed, names) {
  try { const wanted = new RegExp(typed, "i"); return names.filter((name) => wanted.test(name)); } catch { return null; }
}
