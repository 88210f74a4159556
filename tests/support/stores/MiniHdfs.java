import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * HDFS for tests: a name node on the given port of 127.0.0.1 and a data node, with their files in the given folder.
 * Prints the port of WebHDFS when it is ready.
 */
public final class MiniHdfs {
  private MiniHdfs() {}

  public static void main(String[] arguments) throws Exception {
    try (MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(new Configuration(), new File(arguments[1]))
            .nameNodePort(Integer.parseInt(arguments[0]))
            .numDataNodes(1)
            .build()) {
      cluster.waitActive();
      System.out.println("web " + cluster.getNameNode().getHttpAddress().getPort());
      Thread.currentThread().join();
    }
  }
}
