// Staying up to date. The socket only ever says "there is more"; what there is comes by `pull`. A lost nudge costs a
// delay: every 15 s, on each reconnect and when the page is looked at again we pull anyway.
const SAFETY_NET_MS = 15_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 20_000;
const STEADY_AFTER_MS = 5_000; // a socket that lived this long was no accident

export function stayLive(question, { pull, onStatus, betweenPullsMs = 250 }) {
  let socket = null, pause = FIRST_PAUSE_MS, wanted = true, pulling = false, ended = false, lastPull = 0, goodAt = Date.now();

  const tell = (state) => onStatus(state, goodAt);

  async function pullAll() {
    wanted = true;
    if (pulling || ended) return;
    pulling = true;
    while (wanted && !ended) {
      const gap = document.hidden ? SAFETY_NET_MS : betweenPullsMs;
      const wait = lastPull + gap - Date.now();
      if (wait > 0) await new Promise((done) => { setTimeout(done, wait); document.addEventListener("visibilitychange", done, { once: true }); });
      wanted = false;
      lastPull = Date.now();
      try {
        const more = await pull();
        goodAt = Date.now();
        if (more) { wanted = true; lastPull = 0; tell("catching-up"); } else tell(socket?.readyState === WebSocket.OPEN ? "live" : "polling");
      } catch (failure) {
        if ([401, 403, 404].includes(failure.status)) { end(); tell("signed-out"); } else tell("offline");
      }
    }
    pulling = false;
  }

  // A socket that is still being opened is closed once it is open: the browser would report the other way as an error.
  function end() {
    ended = true;
    if (socket?.readyState === WebSocket.OPEN) socket.close();
  }

  function connect() {
    if (ended || (socket && socket.readyState <= WebSocket.OPEN)) return;
    const mine = socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live`);
    let openedAt = Infinity;
    mine.onopen = () => {
      if (ended) { mine.close(); return; }
      openedAt = Date.now();
      mine.send(JSON.stringify(question));
      pullAll();
    };
    mine.onmessage = () => pullAll();
    mine.onclose = () => {
      if (mine !== socket) return;
      if (Date.now() - openedAt > STEADY_AFTER_MS) pause = FIRST_PAUSE_MS;
      setTimeout(connect, pause * (0.5 + Math.random()));
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
      pullAll();
    };
  }

  const wake = () => { if (!document.hidden) { connect(); pullAll(); } };
  addEventListener("online", wake);
  document.addEventListener("visibilitychange", wake);
  addEventListener("pageshow", (event) => { if (event.persisted) wake(); });
  setInterval(pullAll, SAFETY_NET_MS);
  connect();
}
