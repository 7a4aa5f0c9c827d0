// Reading what the model writes, one step at a time. The texts of a step come when somebody reads it. Whoever looks at an
// older step is not pulled away from it, and whoever follows is told of a newer one while they are in the middle of this.
import { fetchMarkup, replaceContent } from "../../lib/part.js";

const BETWEEN_STEPS_MS = 1_000; // of one who follows: faster nobody reads

export class StepReader {
  #section; #part; #follow; #since; #newest; #at; #asked = 0; #isSeen = false; #timer = 0;

  constructor(section, newest) {
    this.#section = section;
    this.#part = section.querySelector("[data-reading-part]");
    this.#follow = section.querySelector("[data-follow]");
    this.#since = section.querySelector("[data-come-since]");
    this.#newest = this.#at = newest;
    new IntersectionObserver(([entry]) => { this.#isSeen = entry.isIntersecting; this.#keepUp(); }, { rootMargin: "120px" }).observe(section);
    this.#follow.addEventListener("change", () => { if (this.#follow.checked) { history.replaceState(null, "", location.pathname); this.#keepUp(true); } else { this.#at = null; this.#tell(""); } });
    this.#since.addEventListener("click", () => this.#goOn());
    section.addEventListener("toggle", (event) => { if (!event.target.open) this.#keepUp(); }, true);
    section.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-step]");
      if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      this.#choose(link.dataset.step);
    });
    this.#part.addEventListener("submit", (event) => {
      event.preventDefault();
      const step = new FormData(event.target).get("step");
      event.target.reset(); // a part in which somebody types is not renewed
      this.#choose(step);
    });
  }

  // Of `step` there is something to read now; null: of nothing that is new.
  news(step) {
    if (step !== null) this.#newest = step;
    this.#keepUp();
  }

  async #choose(step) {
    this.#follow.checked = false;
    this.#tell("");
    getSelection().removeAllRanges();
    history.replaceState(null, "", `?step=${encodeURIComponent(step)}`);
    await this.#read(step);
    this.#at = null; // whoever follows again sees the newest
  }

  // An open sample, a mark in the text, the keyboard among the samples, the head of it scrolled away: somebody reads.
  get #isRead() {
    const samples = this.#part.querySelector("[data-samples]");
    return Boolean(samples.querySelector("details[open]")) || samples.contains(document.activeElement) || !getSelection().isCollapsed || this.#section.getBoundingClientRect().top < 0;
  }

  #keepUp(isWanted = false) {
    if (isWanted) { clearTimeout(this.#timer); this.#timer = 0; }
    if (!this.#follow.checked || !this.#isSeen || this.#newest === this.#at || this.#timer) return;
    if (this.#isRead && !isWanted) { this.#tell(`Step ${this.#newest} is available`); return; }
    this.#tell("");
    this.#timer = setTimeout(() => { this.#timer = 0; this.#keepUp(); }, BETWEEN_STEPS_MS);
    this.#read(this.#newest);
  }

  async #goOn() {
    getSelection().removeAllRanges();
    await this.#read(this.#newest);
    this.#tell("");
    this.#section.scrollIntoView();
    this.#part.querySelector("[data-reading-step]").focus({ preventScroll: true });
  }

  #tell(words) {
    const said = this.#since.querySelector("span");
    if (said.textContent !== words) said.textContent = words;
    this.#since.hidden = !words;
  }

  async #read(step) {
    const mine = ++this.#asked;
    try {
      const next = await fetchMarkup(`?part=reading&step=${encodeURIComponent(step)}`);
      if (mine === this.#asked && replaceContent(this.#part, next.body)) this.#at = step;
    } catch {
      if (mine === this.#asked) this.#part.querySelector("[data-reading-step]").textContent = `Could not load step ${step}. Try again.`;
    }
  }
}
