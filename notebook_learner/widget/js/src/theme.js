// Whether the page around the panel is dark, and when that changes.

/** "dark" or "light", asked of the notebook first and of the system last. */
export function kindOf(body, root, prefersDark) {
  const lab = body.getAttribute("data-jp-theme-light");
  if (lab !== null) return lab === "false" ? "dark" : "light";
  const code = body.getAttribute("data-vscode-theme-kind") ?? body.className;
  if (/vscode-(dark|high-contrast)(?!-light)/.test(code)) return "dark";
  if (/vscode-(light|high-contrast-light)/.test(code)) return "light";
  const colab = root.getAttribute("theme");
  if (colab !== null) return colab === "dark" ? "dark" : "light";
  // marimo names it on the body.
  const page = root.getAttribute("data-theme") ?? root.getAttribute("data-bs-theme") ?? body.getAttribute("data-theme");
  if (page === "dark" || page === "light") return page;
  return prefersDark ? "dark" : "light";
}

/** Keep `data-theme` of the panel in step with the page; `changed` is called after each change. */
export function follow(panel, changed, signal) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    panel.setAttribute("data-theme", kindOf(document.body, document.documentElement, dark.matches));
    changed();
  };
  // The style sheet of a theme may arrive after the attribute that names it: read once more.
  const observer = new MutationObserver(() => {
    read();
    requestAnimationFrame(() => !signal.aborted && changed());
  });
  const attributeFilter = ["class", "style", "theme", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind", "data-theme", "data-bs-theme"];
  for (const element of [document.documentElement, document.body]) {
    observer.observe(element, { attributes: true, attributeFilter });
  }
  dark.addEventListener("change", read, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
  panel.setAttribute("data-theme", kindOf(document.body, document.documentElement, dark.matches));
}

const COLOURS = { text: "--nl-text", muted: "--nl-muted", line: "--nl-line", grid: "--nl-grid", surface: "--nl-bg", bad: "--nl-bad", mark: "--nl-mark", accent: "--nl-accent" };

/** The colours a canvas needs, as they are now. */
export function colours(panel) {
  const style = getComputedStyle(panel);
  const read = (name) => style.getPropertyValue(name).trim();
  const found = Object.fromEntries(Object.entries(COLOURS).map(([name, variable]) => [name, read(variable)]));
  return { ...found, splits: [read("--nl-train"), read("--nl-valid"), read("--nl-third"), read("--nl-fourth")], font: style.fontFamily };
}
