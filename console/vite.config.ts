import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The same source gives the same bytes: names carry a hash of the content, and nothing of the machine or the
// moment is written into them. tests/console compares a new build with the one in the package.
export default defineConfig({
  base: "/assets/",
  plugins: [svelte()],
  build: {
    outDir: "../src/headwater/console/assets",
    emptyOutDir: true,
    assetsDir: ".",
    manifest: "manifest.json",
    license: { fileName: "LICENSES.md" },
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: true,
  },
});
