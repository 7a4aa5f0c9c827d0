// The inputs of a drawing: its series, their extent, and everything else, its frame. They decide whether to redraw, and
// whether the difference would be visible.
const SEEN_PX = 0.5;

export function likenessOf(room, names, { clientWidth, clientHeight }) {
  const { store, view, palette, axis, detail, marks } = room;
  return {
    series: names.map((name) => store.version(name)).join(),
    frame: JSON.stringify([names.map((name) => detail.version(name)), view.version, view.range(store.extent()), palette.text, axis.version, marks.version, clientWidth, clientHeight]),
    end: Math.max(...names.map((name) => store.buckets(name).at(-1)?.to ?? 0)),
  };
}

export const isAlike = (one, other) => one?.series === other.series && one.frame === other.frame;

// The same frame, and lines that grow by less than is visible. `perStep`: pixels.
export const isTiny = (before, now, perStep) => before?.frame === now.frame && Math.abs(now.end - before.end) * perStep < SEEN_PX;
