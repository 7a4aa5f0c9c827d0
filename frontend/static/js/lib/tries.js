// The pending tries of a pull, at most two: the oldest, for slow connections and busy servers, and the newest, for a
// server that responds again. The first response wins.
const PATIENCE_MS = 30_000; // for the oldest

export class Tries {
  #going = [];

  get isAny() { return this.#going.length > 0; }

  // How `pull(signal, answered)` ended: { value }, or { failure, isTired } after a timeout; null: abandoned.
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
