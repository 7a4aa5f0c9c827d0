// A pull over the page's socket, at most one at a time, and its answer.
const STATUS = { not_found: 404, too_often: 429, unavailable: 503 }; // of the socket's errors

export class Question {
  #send; #asked = null;

  constructor(send) { this.#send = send; }

  get isAsked() { return this.#asked !== null; }

  // Resolves to the news.
  ask(pulled, signal) {
    return new Promise((resolve, reject) => {
      const mine = this.#asked = { after: pulled.after, resolve, reject };
      signal.addEventListener("abort", () => { if (this.#asked === mine) this.lose(); }, { once: true });
      this.#send(pulled);
    });
  }

  // Whether `said` was for the question, and not for the page.
  hears(said) {
    if ("news" in said) { if (said.after === this.#asked?.after) this.#end().resolve(said.news); return true; }
    if ("error" in said && this.isAsked) { this.lose(STATUS[said.error]); return true; }
    return false;
  }

  lose(status) {
    if (this.isAsked) this.#end().reject(Object.assign(new Error(`socket: ${status}`), { status }));
  }

  #end() { const asked = this.#asked; this.#asked = null; return asked; }
}
