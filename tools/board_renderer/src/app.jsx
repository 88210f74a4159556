// Draws a dashboard's JSON with Grafana's components and the data of a Prometheus.
//
// The page's query: board (a file of this server), from and to (Unix time, s), scrape (the interval in s),
// namespace, group, rows=open. When all is drawn, `window.drawn` says what each panel shows.
import React, { useEffect } from 'react';
import { createRoot } from 'react-dom/client';
import { DashboardCursorSync, EventBusSrv, getValueFormats } from '@grafana/data';
import { PanelChrome, PanelContextProvider, PortalContainer, ThemeContext } from '@grafana/ui';
import { GlobalStyles } from 'grafana-global-styles';
import { prepared, theme } from './fields.js';
import { Body } from './panels.jsx';
import { annotations, frames } from './prometheus.js';

const CELL = { width: 1600 / 24, height: 38 };
const GAP = 8;
const HEAD = 84;

const context = {
  eventBus: new EventBusSrv(),
  eventsScope: 'board',
  sync: () => DashboardCursorSync.Off,
  app: 'dashboard',
  onToggleSeriesVisibility() {},
  canAddAnnotations: () => false,
};

class Guard extends React.Component {
  state = {};
  static getDerivedStateFromError(error) {
    return { error };
  }
  componentDidCatch(error) {
    this.props.onError(String(error.stack ?? error));
  }
  render() {
    return this.state.error ? <pre>{String(this.state.error)}</pre> : this.props.children;
  }
}

/** The panels with their places: collapsed rows closed, or all of them opened below each other. */
function placed(board, open) {
  const shown = [];
  let shift = 0;
  for (const panel of board.panels) {
    shown.push({ panel, y: panel.gridPos.y + shift });
    if (panel.type === 'row' && panel.collapsed && open) {
      const height = Math.max(...panel.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) - panel.gridPos.y - 1;
      shown.push(...panel.panels.map((inner) => ({ panel: inner, y: inner.gridPos.y + shift })));
      shift += height;
    }
  }
  return shown;
}

function Head({ board, view }) {
  const chip = { border: `1px solid ${theme.colors.border.medium}`, padding: '4px 8px', borderRadius: 2 };
  const minute = (time) => new Date(time * 1000).toISOString().slice(0, 16).replace('T', ' ');
  const variables = (board.templating?.list ?? []).filter(({ name }) => name !== 'datasource');
  return (
    <div style={{ padding: '10px 8px', fontSize: 13 }}>
      <div style={{ fontSize: 18, marginBottom: 8 }}>{board.title}</div>
      <div style={{ display: 'flex', gap: 8 }}>
        {variables.map(({ name, label }) => (
          <span key={name} style={chip}>
            {label} <b>{view[name] === '.+' ? 'All' : view[name]}</b>
          </span>
        ))}
        {(board.annotations?.list ?? []).map((mark) => (
          <span key={mark.name} style={chip}>
            <span style={{ color: theme.visualization.getColorByName(mark.iconColor) }}>▼</span> {mark.name}
          </span>
        ))}
        {(board.links ?? []).map((link) => (
          <span key={link.title} style={chip}>
            ↗ {link.title}
          </span>
        ))}
        <span style={{ ...chip, marginLeft: 'auto' }}>
          {minute(view.from)} to {minute(view.to)} UTC
        </span>
      </div>
    </div>
  );
}

function Page({ board, view, panels, marks, onDrawn, onError }) {
  useEffect(onDrawn, [onDrawn]);
  const height = Math.max(...panels.map(({ panel, y }) => y + panel.gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PanelContextProvider value={context}>
        <div
          style={{
            position: 'relative',
            width: 1600 + 2 * GAP,
            height: height * CELL.height + HEAD + GAP,
            background: theme.colors.background.canvas,
            color: theme.colors.text.primary,
          }}
        >
          <Head board={board} view={view} />
          {panels.map(({ panel, y, data }) => {
            const { x, w, h } = panel.gridPos;
            const place = { position: 'absolute', left: GAP + x * CELL.width, top: HEAD + y * CELL.height };
            if (panel.type === 'row') {
              return (
                <div key={panel.id} style={{ ...place, fontSize: 16, paddingTop: 6 }}>
                  {view.open ? '▾' : '▸'} {panel.title}{' '}
                  <small style={{ color: theme.colors.text.secondary }}>({panel.panels.length} panels)</small>
                </div>
              );
            }
            return (
              <div key={panel.id} style={place} id={`panel-${panel.id}`}>
                <PanelChrome
                  width={w * CELL.width - GAP}
                  height={h * CELL.height - GAP}
                  title={panel.title}
                  description={panel.description}
                >
                  {(width, height) => (
                    <Guard onError={(error) => onError(panel, error)}>
                      <Body panel={panel} frames={data} view={view} marks={marks} width={width} height={height} />
                    </Guard>
                  )}
                </PanelChrome>
              </div>
            );
          })}
          <PortalContainer />
        </div>
      </PanelContextProvider>
    </ThemeContext.Provider>
  );
}

async function draw() {
  const query = new URLSearchParams(location.search);
  const view = {
    from: Number(query.get('from')),
    to: Number(query.get('to')),
    scrape: Number(query.get('scrape') ?? 15),
    annotationStep: Number(query.get('scrape') ?? 15),
    namespace: query.get('namespace') ?? '.+',
    group: query.get('group') ?? '',
    open: query.get('rows') === 'open',
  };
  const board = await (await fetch(`/boards/${query.get('board')}`)).json();
  const errors = [];
  const marks = await annotations(board, view);
  const panels = await Promise.all(
    placed(board, view.open).map(async ({ panel, y }) => {
      if (panel.type === 'row') {
        return { panel, y };
      }
      const width = panel.gridPos.w * CELL.width - GAP;
      return { panel, y, data: await prepared(panel, await frames(panel, view, width), view) };
    })
  );
  const onDrawn = () => {
    // Charts are drawn in the frame after React has rendered, their sizes in the one after that.
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        window.drawn = {
          errors,
          marks,
          units: getValueFormats().flatMap(({ submenu }) => submenu.map(({ value }) => value)),
          panels: panels
            .filter(({ data }) => data)
            .map(({ panel, data }) => ({
              title: panel.title,
              type: panel.type,
              values: data.flatMap((frame) =>
                frame.fields.flatMap((field) => field.values).filter((value) => value !== null)
              ).length,
              series: data.map((frame) => frame.fields.at(-1).state?.displayName ?? frame.fields.at(-1).name),
              text: document.getElementById(`panel-${panel.id}`).innerText,
              links: [...document.querySelectorAll(`#panel-${panel.id} a[href]`)].map((a) => a.getAttribute('href')),
            })),
        };
      })
    );
  };
  createRoot(document.getElementById('root')).render(
    <Page
      board={board}
      view={view}
      panels={panels}
      marks={marks}
      onDrawn={onDrawn}
      onError={(panel, error) => errors.push(`${panel.title}: ${error}`)}
    />
  );
}

draw().catch((error) => {
  window.drawn = { errors: [String(error.stack ?? error)], marks: [], panels: [] };
});
