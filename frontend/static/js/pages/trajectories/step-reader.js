// Shows trajectories one step at a time. Texts are fetched for the displayed step only. An older step stays displayed, and
// a user who follows the newest step is notified of a newer one while reading.
import { fetchMarkup, replaceContent } from "../../lib/part.js";

const BETWEEN_STEPS_MS = 1_000; // while following: faster is unreadable

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
      event.target.reset(); // a part with a focused field is not refreshed
      this.#choose(step);
    });
  }

  // `step`: a new step that can be read; null: none.
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
    this.#at = null; // following again shows the newest step
  }

  // The user is reading: an open sample, selected text, focus among the samples, or the head scrolled out of view.
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
