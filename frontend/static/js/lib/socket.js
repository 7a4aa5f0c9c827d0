// A socket that subscribes with `question` and reconnects whenever it is lost. A stalled connection does not close by
// itself: without a message for longer than the server's heartbeat, it is abandoned.
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 2_000; // about: at most 3 s
const STEADY_AFTER_MS = 5_000; // a socket that lived this long was healthy
const DEAF_AFTER_MS = 4_000; // the heartbeat comes every 1.5 s
const OPENS_WITHIN_MS = 8_000; // a restarted server opens a thousand at a time: leaving early would double its work

export const aroundIt = (ms) => ms * (0.5 + Math.random());

export function keepSocket(question, { onFrame, onLost }) {
  let socket = null, heardAt = 0, saidAt = 0, openedAt = Infinity, pause = FIRST_PAUSE_MS, ended = false, hasWorked = false, wasDeaf = false;
  const isOpen = () => socket?.readyState === WebSocket.OPEN;

  function connect() {
    if (ended || (socket && socket.readyState <= WebSocket.OPEN)) return;
    const mine = socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live`);
    openedAt = Infinity;
    heardAt = Date.now();
    mine.onopen = () => {
      if (ended || mine !== socket) { mine.close(); return; }
      openedAt = heardAt = Date.now();
      mine.send(JSON.stringify(question));
    };
    mine.onmessage = ({ data }) => {
      if (mine !== socket) return;
      heardAt = saidAt = Date.now();
      hasWorked = true;
      wasDeaf = false;
      onFrame(JSON.parse(data), heardAt);
    };
    mine.onclose = () => { if (mine === socket) lost(); };
  }

  function lost() {
    const wasOpen = openedAt !== Infinity;
    if (Date.now() - openedAt > STEADY_AFTER_MS) pause = FIRST_PAUSE_MS;
    socket = null;
    openedAt = Infinity;
    setTimeout(connect, aroundIt(pause));
    pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    onLost(wasOpen);
  }

  return {
    isOpen,
    isHeard: () => isOpen() && Date.now() - saidAt <= DEAF_AFTER_MS, // after sleep an open socket may be dead
    openedAt: () => openedAt,
    // It worked and was closed or refused since: it opens again as soon as the server answers, at most 3 s later.
    returns: () => hasWorked && !wasDeaf && !isOpen(),
    connect,
    send(frame) { socket.send(JSON.stringify(frame)); },
    wake() { heardAt = Date.now(); connect(); }, // after sleep: reset the timeout
    leaveIfDeaf() {
      if (!socket || Date.now() - heardAt <= (openedAt === Infinity ? OPENS_WITHIN_MS : DEAF_AFTER_MS)) return;
      const deaf = socket;
      wasDeaf = true;
      lost();
      deaf.close();
    },
    // A connecting socket is closed after it opens: closing it earlier is reported as an error by the browser.
    end() { ended = true; if (isOpen()) socket.close(); },
  };
}
