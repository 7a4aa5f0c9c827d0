// Log lines: new ones are appended, and the view follows only while it is at the end. If the user has scrolled up or
// selected text, a button shows the number of new lines.
import { fetchMarkup } from "../lib/part.js";

const AT_END_PX = 24;
const MOST_KEPT = 3_000; // lines; the oldest are dropped while following
const AFTER_TYPING_MS = 250;

export class LogReader {
  #box; #form; #earlier; #newer; #none; #asked = 0; #unseen = 0; #timer = 0; #top = 0; #follows = true;

  constructor(section) {
    const find = (name) => section.querySelector(`[data-log${name}]`);
    [this.#box, this.#form, this.#earlier, this.#newer, this.#none] = ["", "-filter", "-earlier", "-newer", "-none"].map(find);
    this.#toEnd();
    this.#form.addEventListener("input", () => { clearTimeout(this.#timer); this.#timer = setTimeout(() => this.#filter(), AFTER_TYPING_MS); });
    this.#form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(this.#timer); this.#filter(); });
    this.#earlier.addEventListener("click", (event) => { event.preventDefault(); this.#goBack(); });
    this.#newer.addEventListener("click", () => { this.#toEnd(); this.#box.focus({ preventScroll: true }); });
    this.#box.addEventListener("scroll", () => this.#moved(), { passive: true });
  }

  // Newer lines; in several responses if there are many.
  async news(signal) {
    const mine = this.#asked;
    const next = await this.#fetch({ after: this.#list.dataset.follow }, signal);
    if (mine !== this.#asked) return;
    const follows = this.#follows && getSelection().isCollapsed, lines = [...next.children];
    this.#list.append(...lines);
    this.#list.dataset.follow = next.dataset.follow;
    this.#none.hidden = this.#list.childElementCount > 0;
    if (!follows) this.#tellUnseen(this.#unseen + lines.length);
    else if (lines.length) { this.#forget(); this.#toEnd(); }
    if ("more" in next.dataset) await this.news(signal);
  }

  get #list() { return this.#box.querySelector("[data-lines]"); }
  get #query() { return new URLSearchParams([...new FormData(this.#form)].filter(([, value]) => value)); }

  async #fetch(place, signal) {
    const query = new URLSearchParams([...this.#query, ...Object.entries(place), ["part", "lines"]]);
    return (await fetchMarkup(`?${query}`, signal)).querySelector("[data-lines]");
  }

  async #filter() {
    const mine = ++this.#asked;
    history.replaceState(null, "", `?${this.#query}`);
    const next = await this.#fetch({}).catch(() => null);
    if (mine !== this.#asked || !next) return;
    this.#list.replaceWith(next);
    this.#none.hidden = next.childElementCount > 0;
    this.#none.textContent = "No matching lines.";
    this.#earlier.hidden = !("back" in next.dataset);
    this.#toEnd();
  }

  async #goBack() {
    const mine = this.#asked, list = this.#list;
    const older = await this.#fetch({ before: list.dataset.back }).catch(() => null);
    if (mine !== this.#asked || !older) return;
    const height = this.#box.scrollHeight;
    list.prepend(...older.children);
    this.#box.scrollTop += this.#box.scrollHeight - height;
    list.dataset.back = older.dataset.back ?? "";
    this.#earlier.hidden = !older.dataset.back;
  }

  #forget() { while (this.#list.childElementCount > MOST_KEPT) this.#list.firstElementChild.remove(); }
  #isAtEnd() { return this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight < AT_END_PX; }
  #toEnd() { this.#follows = true; this.#box.scrollTop = this.#box.scrollHeight; this.#tellUnseen(0); }

  // Only scrolling back stops following: the list may also grow when its styles load.
  #moved() {
    const top = this.#box.scrollTop;
    if (this.#isAtEnd()) { this.#follows = true; this.#tellUnseen(0); } else if (top < this.#top) this.#follows = false;
    this.#top = top;
  }

  #tellUnseen(count) {
    this.#unseen = count;
    this.#newer.hidden = count === 0;
    this.#newer.querySelector("[data-log-count]").textContent = count ? `${count} new line${count === 1 ? "" : "s"} ↓` : "";
  }
}
