// A pull over the page's socket, at most one at a time, and its answer.
const STATUS = { not_found: 404, too_often: 429, unavailable: 503 }; // of the socket's errors

export class Question {
  #send; #pending = null;

  constructor(send) { this.#send = send; }

  get isPending() { return this.#pending !== null; }

  // Resolves to the news.
  ask(pulled, signal) {
    return new Promise((resolve, reject) => {
      const mine = this.#pending = { after: pulled.after, resolve, reject };
      signal.addEventListener("abort", () => { if (this.#pending === mine) this.lose(); }, { once: true });
      this.#send(pulled);
    });
  }

  // Whether the frame was the answer, and not for the page.
  accepts(frame) {
    if ("news" in frame) { if (frame.after === this.#pending?.after) this.#end().resolve(frame.news); return true; }
    if ("error" in frame && this.isPending) { this.lose(STATUS[frame.error]); return true; }
    return false;
  }

  lose(status) {
    if (this.isPending) this.#end().reject(Object.assign(new Error(`socket: ${status}`), { status }));
  }

  #end() { const pending = this.#pending; this.#pending = null; return pending; }
}
