// Bundles the panel: ../static/panel.js, panel.css, the licences of what is in them, and a digest of what
// they were made from, by which hatch_build.py sees whether they are still up to date.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const packages = ["uplot"];

// The plot library's style sheet, put below our own class: another version of it may be on the page.
const below = {
  name: "below-our-class",
  setup(build) {
    build.onLoad({ filter: /uPlot\.min\.css$/ }, async ({ path }) => ({
      contents: `.nl-panel { ${await readFile(path, "utf8")} }`,
      loader: "css",
    }));
  },
};

// Of the plot library, what the panel never draws: bars, steps, splines and time zones: 2 kB of what is shipped.
const UNUSED = ["(paths.stepped = stepped);", "(paths.bars    = bars);", "(paths.spline  = monotoneCubic);", "uPlot.tzDate  = tzDate;"];
const onlyWhatIsDrawn = {
  name: "only-what-is-drawn",
  setup(build) {
    build.onLoad({ filter: /uPlot\.esm\.js$/ }, async ({ path }) => {
      let contents = await readFile(path, "utf8");
      for (const line of UNUSED) {
        if (!contents.includes(line)) throw new Error(`another version of the plot library: it has no ${line}`);
        contents = contents.replace(line, "");
      }
      return { contents, loader: "js" };
    });
  },
};

const shared = {
  bundle: true,
  minify: true,
  sourcemap: false,
  legalComments: "none",
  charset: "utf8",
  logLevel: "warning",
  plugins: [below, onlyWhatIsDrawn],
};

await mkdir(here("../static/"), { recursive: true });
await build({ ...shared, entryPoints: [here("src/main.js")], format: "esm", target: "es2022", outfile: here("../static/panel.js") });
await build({ ...shared, entryPoints: [here("src/style.css")], target: ["chrome111", "firefox113", "safari16.4"], outfile: here("../static/panel.css") });

const notices = await Promise.all(
  packages.map(async (name) => {
    const { version } = JSON.parse(await readFile(here(`node_modules/${name}/package.json`), "utf8"));
    const text = await readFile(here(`node_modules/${name}/LICENSE`), "utf8");
    return `${name} ${version}\n${"=".repeat(`${name} ${version}`.length)}\n\n${text.trim()}\n`;
  }),
);
await writeFile(here("../static/LICENSES.txt"), `panel.js and panel.css contain:\n\n${notices.join("\n\n")}`);

// The same digest as hatch_build.py's: of each file its name and what is in it.
const sources = ["build.mjs", "package.json", "package-lock.json", ...(await readdir(here("src"))).sort().map((name) => `src/${name}`)];
const digest = createHash("sha256");
for (const path of sources) {
  digest.update(`${path.split("/").pop()}\0`).update(await readFile(here(path))).update("\0");
}
await writeFile(here("../static/sources.sha256"), `${digest.digest("hex")}\n`);
