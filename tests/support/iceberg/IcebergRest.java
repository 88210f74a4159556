import jakarta.servlet.DispatcherType;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.EnumSet;
import java.util.Map;
import org.apache.iceberg.Files;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.FilterHolder;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Iceberg's own REST catalog (RESTCatalogAdapter of iceberg-core's tests) over its JdbcCatalog, on a port of
 * 127.0.0.1, for tables on the local disk, or in the S3 of moto at the URL of the property "s3".
 *
 * <p>Arguments: port, SQLite file, warehouse's address, and a token that requests must carry. It is also the id
 * of a client that gets a token of its own for any secret.
 */
public final class IcebergRest {
  /** Reads and writes files of the local disk. */
  public static final class LocalFiles implements FileIO {
    @Override
    public InputFile newInputFile(String path) {
      return Files.localInput(path);
    }

    @Override
    public OutputFile newOutputFile(String path) {
      String local = path.replaceFirst("^file:(//)?", "");
      new java.io.File(local).getParentFile().mkdirs();
      return Files.localOutput(local);
    }

    @Override
    public void deleteFile(String path) {
      new java.io.File(path.replaceFirst("^file:(//)?", "")).delete();
    }
  }

  /** Reads and writes objects of moto, which checks no signature. */
  public static final class Objects implements FileIO {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final String USER =
        "AWS4-HMAC-SHA256 Credential=test-key-id/20260101/us-east-1/s3/aws4_request, "
            + "SignedHeaders=host, Signature=0";

    private static byte[] ask(String method, String path, byte[] body) {
      URI address = URI.create(System.getProperty("s3") + "/" + path.replaceFirst("^s3://", ""));
      HttpRequest request =
          HttpRequest.newBuilder(address)
              .header("Authorization", USER)
              .method(method, HttpRequest.BodyPublishers.ofByteArray(body))
              .build();
      try {
        HttpResponse<byte[]> answer =
            CLIENT.send(request, HttpResponse.BodyHandlers.ofByteArray());
        if (answer.statusCode() >= 300) {
          throw new IOException(method + " " + address + ": " + answer.statusCode());
        }
        return answer.body();
      } catch (IOException exc) {
        throw new UncheckedIOException(exc);
      } catch (InterruptedException exc) {
        throw new IllegalStateException(exc);
      }
    }

    @Override
    public InputFile newInputFile(String path) {
      return new InMemoryInputFile(path, ask("GET", path, new byte[0]));
    }

    @Override
    public OutputFile newOutputFile(String path) {
      return new OutputFile() {
        @Override
        public PositionOutputStream create() {
          ByteArrayOutputStream content = new ByteArrayOutputStream();
          return new PositionOutputStream() {
            @Override
            public long getPos() {
              return content.size();
            }

            @Override
            public void write(int value) {
              content.write(value);
            }

            @Override
            public void close() {
              ask("PUT", path, content.toByteArray());
            }
          };
        }

        @Override
        public PositionOutputStream createOrOverwrite() {
          return create();
        }

        @Override
        public String location() {
          return path;
        }

        @Override
        public InputFile toInputFile() {
          return newInputFile(path);
        }
      };
    }

    @Override
    public void deleteFile(String path) {
      ask("DELETE", path, new byte[0]);
    }
  }

  public static void main(String[] arguments) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.initialize(
        "rest",
        Map.of(
            "uri", "jdbc:sqlite:" + arguments[1],
            "warehouse", arguments[2],
            "io-impl",
                (System.getProperty("s3") == null ? LocalFiles.class : Objects.class).getName()));
    String allowed = "Bearer " + arguments[3];
    String granted = "Bearer client-credentials-token:sub=" + arguments[3];

    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    context.addFilter(
        new FilterHolder(
            (request, response, chain) -> {
              HttpServletRequest asked = (HttpServletRequest) request;
              String given = asked.getHeader("Authorization");
              if (allowed.equals(given)
                  || granted.equals(given)
                  || asked.getRequestURI().endsWith("/oauth/tokens")) {
                chain.doFilter(request, response);
                return;
              }
              ((HttpServletResponse) response).setStatus(401);
              response.setContentType("application/json");
              response
                  .getWriter()
                  .write(
                      "{\"error\":{\"message\":\"Not authorized\","
                          + "\"type\":\"NotAuthorizedException\",\"code\":401}}");
            }),
        "/*",
        EnumSet.of(DispatcherType.REQUEST));

    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    connector.setPort(Integer.parseInt(arguments[0]));
    server.addConnector(connector);
    server.setHandler(context);
    server.start();
    server.join();
  }
}
