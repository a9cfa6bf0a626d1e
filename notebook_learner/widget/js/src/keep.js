// What a browser keeps of a person's choices: which sections are folded, which metrics are pinned or hidden.

const PREFIX = "notebook_learner ";

/** What was kept under a name; `fallback` if nothing was, or if this page may not keep anything. */
export function kept(name, fallback) {
  try {
    const found = JSON.parse(localStorage.getItem(PREFIX + name));
    return typeof found === typeof fallback && Array.isArray(found) === Array.isArray(fallback) ? (found ?? fallback) : fallback;
  } catch {
    return fallback;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // A frame without storage of its own: the choice holds until the page is closed.
  }
}
