// A page, a server and a database in a time of their own: lib/live.js as it is, with every clock, chance and wire given.
//
// `await lived({ live, seed, outage, from, until, answersInMs, wire })` → what the page did and said. The database moves on
// in the middle of the outage; nothing that is lost in an outage is ever answered. `wire`: "socket" for pages that pull
// over their socket, "http" for others. `tries` are the pulls, `openings` the attempts to open a socket.
const FLUSH = () => new Promise(setImmediate);
const realRandom = Math.random, realNow = Date.now;

function chance(seed) {
  let a = seed;
  return () => { a = (a + 0x6d2b79f5) | 0; let t = Math.imul(a ^ (a >>> 15), 1 | a); t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t; return ((t ^ (t >>> 14)) >>> 0) / 4294967296; };
}

class Time {
  now = 1_000_000; #due = []; #ids = 0;
  at(ms, call) { const id = ++this.#ids; this.#due.push({ at: this.now + Math.max(0, ms), id, call }); return id; }
  forget(id) { this.#due = this.#due.filter((each) => each.id !== id); }
  async pass(ms) {
    const end = this.now + ms;
    for (;;) {
      await FLUSH();
      this.#due.sort((one, other) => one.at - other.at || one.id - other.id);
      if (!this.#due.length || this.#due[0].at > end) break;
      const next = this.#due.shift();
      this.now = next.at;
      next.call();
    }
    this.now = end;
  }
}

export async function lived({ live, seed, outage, from = 10_000, until = 40_000, rest = 12_000, answersInMs = 300, wire = "socket" }) {
  const time = new Time(), began = time.now, sockets = new Set();
  let database = 0, shown = 0, underWay = 0;
  const found = { tries: [], openings: [], statuses: [], mostAtOnce: 0, equalAt: null };
  const inOutage = () => outage && time.now >= began + from && time.now < began + until;
  const away = (kind) => inOutage() && outage === kind;

  class Socket {
    static OPEN = 1;
    readyState = 0; #beats = 0; #told = 0;
    constructor() {
      found.openings.push(time.now - began);
      if (away("stalled")) return; // nobody ever answers
      time.at(20, () => (away("refused") ? this.die() : this.#open()));
    }
    #open() { if (this.readyState !== 0) return; this.readyState = 1; sockets.add(this); this.onopen?.(); }
    send(text) {
      const sent = JSON.parse(text);
      if ("pull" in sent) { if (!away("stalled") && !away("database away")) time.at(answersInMs, () => this.#say({ after: sent.after, news: database })); return; }
      this.#say({ cursor: this.#told = database });
      this.#beat();
    }
    #beat() {
      this.#beats = time.at(1_500, () => {
        if (!sockets.has(this)) return;
        if (this.#told !== database) this.#say({ cursor: this.#told = database }); else this.#say({ beat: 0.5 });
        this.#beat();
      });
    }
    #say(said) { if (!away("stalled") && !away("database away")) this.onmessage?.({ data: JSON.stringify(said) }); }
    die() { this.readyState = 3; sockets.delete(this); time.forget(this.#beats); this.onclose?.(); }
    close() { this.readyState = 3; sockets.delete(this); time.forget(this.#beats); }
  }

  Object.assign(globalThis, {
    WebSocket: Socket, document: { hidden: false, addEventListener() {} }, addEventListener() {},
    location: { protocol: "http:", host: "laminar" },
    setTimeout: (call, ms) => time.at(ms, call), clearTimeout: (id) => time.forget(id),
    setInterval: (call, ms) => { const again = () => { call(); time.at(ms, again); }; time.at(ms, again); },
  });
  Math.random = chance(seed);
  Date.now = () => time.now;

  async function pullOverSocket(signal, answered, ask) {
    const news = await ask({ pull: "job", after: shown }, signal);
    answered();
    shown = news;
    if (shown === 1) found.equalAt ??= time.now - began;
    return false;
  }

  function pull(signal, answered, ask) {
    found.tries.push(time.now - began);
    if (ask && wire === "socket") return pullOverSocket(signal, answered, ask);
    found.mostAtOnce = Math.max(found.mostAtOnce, ++underWay);
    return new Promise((done, failed) => {
      const over = (call) => (value) => { underWay--; call(value); };
      signal.addEventListener("abort", over(() => failed(new Error("aborted"))), { once: true });
      if (away("stalled") || away("pull hangs")) return;
      if (away("refused")) time.at(5, over(() => failed(new Error("refused"))));
      else if (away("database away")) time.at(200, over(() => failed(Object.assign(new Error("503"), { status: 503 }))));
      else time.at(answersInMs, () => { if (signal.aborted) return; answered(); shown = database; underWay--; if (shown === 1) found.equalAt ??= time.now - began; done(false); });
    });
  }

  live.stayLive({ watch: "job" }, { pull, isNews: ({ cursor }) => !(cursor <= shown), onStatus: (state) => {
    if (found.statuses.at(-1)?.state !== state) found.statuses.push({ state, at: time.now - began });
  } });
  time.at(from, () => { if (outage === "refused") for (const each of [...sockets]) each.die(); });
  time.at((from + until) / 2, () => { database = 1; });
  await time.pass(until + rest);
  Math.random = realRandom;
  Date.now = realNow;
  return found;
}
