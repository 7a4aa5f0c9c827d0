// The tries of one question that are under way, two at most: the eldest, for whoever is far away or stands behind a
// thousand others, and the newest, for a world that answers again. The first that is answered has the word.
const PATIENCE_MS = 30_000; // with the eldest

export class Tries {
  #going = [];

  get isAny() { return this.#going.length > 0; }

  // How `pull(signal, answered)` ended: { value }, or { failure, isTired } where nobody answered in time; null: it was left.
  async add(pull) {
    this.#going.splice(1).forEach((between) => between.abort());
    const mine = new AbortController(), { signal } = mine;
    this.#going.push(mine);
    const patience = setTimeout(() => mine.abort(), PATIENCE_MS);
    const haveTheWord = () => { signal.throwIfAborted(); this.#leaveAllBut(mine); };
    try {
      const value = await pull(signal, haveTheWord);
      haveTheWord();
      return { value };
    } catch (failure) {
      return this.#going.includes(mine) ? { failure, isTired: signal.aborted } : null;
    } finally {
      clearTimeout(patience);
      this.#going = this.#going.filter((each) => each !== mine);
    }
  }

  leave() { this.#leaveAllBut(null); }

  #leaveAllBut(one) {
    const others = this.#going.filter((each) => each !== one);
    this.#going = this.#going.filter((each) => each === one);
    others.forEach((each) => each.abort());
  }
}
