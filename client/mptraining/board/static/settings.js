// The reader's own choices (sort order, columns, theme), kept by the browser; the page works without that, too.

const PREFIX = "mptj-board.";

/** Return the kept value of `name`, or `otherwise`. */
export function kept(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/** Keep a value that is JSON. */
export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // A page opened from a file, or a full store: the choice lasts until the page is closed.
  }
}
