// A socket that subscribes with `question` and reconnects whenever it is lost. A stalled connection does not close by
// itself: without a message for longer than the server's heartbeat, it is abandoned.
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 2_000; // about: at most 3 s
const STEADY_AFTER_MS = 5_000; // a socket that lived this long was healthy
const DEAF_AFTER_MS = 4_000; // the heartbeat comes every 1.5 s

export const aroundIt = (ms) => ms * (0.5 + Math.random());

export function keepSocket(question, { onOpen, onSaid, onLost }) {
  let socket = null, heardAt = 0, pause = FIRST_PAUSE_MS, ended = false;
  const isOpen = () => socket?.readyState === WebSocket.OPEN;

  function connect() {
    if (ended || (socket && socket.readyState <= WebSocket.OPEN)) return;
    const mine = socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live`);
    let openedAt = Infinity;
    heardAt = Date.now();
    mine.onopen = () => {
      if (ended || mine !== socket) { mine.close(); return; }
      openedAt = heardAt = Date.now();
      mine.send(JSON.stringify(question));
      onOpen();
    };
    mine.onmessage = ({ data }) => {
      if (mine !== socket) return;
      heardAt = Date.now();
      onSaid(JSON.parse(data), heardAt);
    };
    mine.onclose = () => { if (mine === socket) lost(openedAt); };
  }

  function lost(openedAt) {
    if (Date.now() - openedAt > STEADY_AFTER_MS) pause = FIRST_PAUSE_MS;
    socket = null;
    setTimeout(connect, aroundIt(pause));
    pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    onLost();
  }

  return {
    isOpen,
    isThere: () => socket !== null,
    connect,
    wake() { heardAt = Date.now(); connect(); }, // after sleep: reset the timeout
    leaveIfDeaf() {
      if (!socket || Date.now() - heardAt <= DEAF_AFTER_MS) return;
      const deaf = socket;
      lost(Infinity);
      deaf.close();
    },
    // A connecting socket is closed after it opens: closing it earlier is reported as an error by the browser.
    end() { ended = true; if (isOpen()) socket.close(); },
  };
}
