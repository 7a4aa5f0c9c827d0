// One socket that asks `question` and is opened again whenever it is lost. A connection that stalls closes nothing: who
// has heard nothing for longer than the server's beat leaves it behind, whatever it still may say.
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 2_000; // about: at most 3 s
const STEADY_AFTER_MS = 5_000; // a socket that lived this long was no accident
const DEAF_AFTER_MS = 4_000; // a socket says something every 1.5 s

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
    wake() { heardAt = Date.now(); connect(); }, // whoever slept heard nothing meanwhile
    leaveIfDeaf() {
      if (!socket || Date.now() - heardAt <= DEAF_AFTER_MS) return;
      const deaf = socket;
      lost(Infinity);
      deaf.close();
    },
    // One that is still being opened is closed once it is open: the browser would report the other way as an error.
    end() { ended = true; if (isOpen()) socket.close(); },
  };
}
