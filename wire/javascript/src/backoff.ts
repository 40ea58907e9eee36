/** Growing waits in milliseconds: from `first` each is twice the one before, up to `most`, less up to half by chance. */
export class Backoff {
  constructor(
    readonly first = 100,
    readonly most = 5000,
    readonly chance: () => number = Math.random,
  ) {}

  *delays(): Generator<number, never> {
    for (let delay = this.first; ; delay = Math.min(2 * delay, this.most)) {
      yield delay * (1 - this.chance() / 2);
    }
  }
}
