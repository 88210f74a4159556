// Bundles the page into out/.
const esbuild = require('esbuild');
const fs = require('node:fs');
const path = require('node:path');

const here = (...parts) => path.join(__dirname, ...parts);

fs.mkdirSync(here('out'), { recursive: true });
fs.copyFileSync(here('index.html'), here('out', 'index.html'));
esbuild.buildSync({
  entryPoints: [here('src', 'app.jsx')],
  bundle: true,
  outfile: here('out', 'app.js'),
  jsx: 'automatic',
  logLevel: 'error',
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  alias: {
    // Not among the package's exports, but what Grafana's own page starts with.
    'grafana-global-styles': here('node_modules/@grafana/ui/dist/esm/themes/GlobalStyles/GlobalStyles.mjs'),
    // A CommonJS package whose default export esbuild and Grafana's modules take differently.
    'react-custom-scrollbars-2': here('src/scrollbars.js'),
    'scrollbars-package': here('node_modules/react-custom-scrollbars-2/lib/index.js'),
  },
  loader: {
    '.svg': 'text',
    '.png': 'dataurl',
    '.woff2': 'dataurl',
    '.woff': 'empty',
    '.ttf': 'empty',
    '.eot': 'empty',
  },
});
