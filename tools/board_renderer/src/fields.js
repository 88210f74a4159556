// Grafana's own field overrides, transformations and links, with what its server side would register.
import {
  applyFieldOverrides,
  createTheme,
  FieldConfigOptionsRegistry,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

export const theme = createTheme({
  colors: { mode: new URLSearchParams(location.search).get('theme') ?? 'dark' },
});

const option = (id, isCustom) => ({
  id: isCustom ? `custom.${id}` : id,
  path: id,
  name: id,
  isCustom,
  process: (value) => value,
  shouldApply: () => true,
});
const registry = new FieldConfigOptionsRegistry(() => [
  ...['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings', 'links'].map(
    (id) => option(id, false)
  ),
  ...['align', 'cellOptions', 'width', 'drawStyle', 'lineWidth', 'fillOpacity', 'stacking'].map((id) =>
    option(id, true)
  ),
]);
standardTransformersRegistry.setInit(() =>
  // Some are there under two names.
  [...new Map(Object.values(standardTransformers).map((made) => [made.id, made])).values()].map((made) => ({
    id: made.id,
    name: made.name,
    transformation: made,
    editor: () => null,
  }))
);

const COLOURS = { timeseries: 'palette-classic', barchart: 'palette-classic' };
const GRAPH = {
  drawStyle: 'line',
  lineWidth: 1,
  fillOpacity: 0,
  showPoints: 'auto',
  pointSize: 5,
  axisPlacement: 'auto',
  scaleDistribution: { type: 'linear' },
  stacking: { mode: 'none', group: 'A' },
  hideFrom: { legend: false, tooltip: false, viz: false },
  thresholdsStyle: { mode: 'off' },
};
const CUSTOM = { timeseries: GRAPH, table: { align: 'auto', cellOptions: { type: 'auto' }, inspect: false } };

/** Grafana's configuration of the panel's fields, with the defaults of its kind. */
export function fieldConfig(panel) {
  const config = panel.fieldConfig ?? { defaults: {}, overrides: [] };
  const steps = config.defaults.thresholds?.steps ?? [{ value: null, color: 'green' }];
  const infinite = (thresholds) => ({
    ...thresholds,
    steps: thresholds.steps.map((step) => ({ ...step, value: step.value ?? -Infinity })),
  });
  return {
    defaults: {
      ...config.defaults,
      color: config.defaults.color ?? { mode: COLOURS[panel.type] ?? 'thresholds' },
      thresholds: infinite({ mode: 'absolute', ...config.defaults.thresholds, steps }),
      custom: { ...CUSTOM[panel.type], ...config.defaults.custom },
    },
    overrides: (config.overrides ?? []).map((override) => ({
      ...override,
      properties: override.properties.map((property) =>
        property.id === 'thresholds' ? { ...property, value: infinite(property.value) } : property
      ),
    })),
  };
}

/** Replaces Grafana's variables in the URL of a link. */
export function replaceVariables(view) {
  return (text, scoped) => {
    const context = scoped?.__dataContext?.value;
    const named = (name) => context?.frame?.fields.find((field) => field.name === name)?.values[context.rowIndex];
    return text
      .replace(/\$\{__data\.fields\.(\w+)\}/g, (_, name) => encodeURIComponent(named(name) ?? ''))
      .replace(/\$\{__field\.labels\.(\w+)\}/g, (_, name) => context?.field?.labels?.[name] ?? '')
      .replace('${datasource:queryparam}', 'var-datasource=prometheus')
      .replace('${__url_time_range}', `from=${view.from * 1000}&to=${view.to * 1000}`);
  };
}

/** The frames of a panel after its transformations, with displays, links and colours. */
export async function prepared(panel, frames, view) {
  const transformations = panel.transformations ?? [];
  const data = await lastValueFrom(
    transformDataFrame(transformations, frames, { interpolate: (text) => text })
  );
  return applyFieldOverrides({
    data,
    fieldConfig: fieldConfig(panel),
    fieldConfigRegistry: registry,
    replaceVariables: replaceVariables(view),
    theme,
    timeZone: 'utc',
  });
}
