// A client of Lockkeeper in Java 17, with the JDK only.
//
//   java Client.java http://127.0.0.1:7420
//   LOCKKEEPER_CA=ca.pem LOCKKEEPER_AUTH_TOKEN_FILE=ci.token java Client.java https://locks.example:7420
//
// Copy this file and adapt it; with a JSON library it gets shorter. The rules that keep it safe are marked with RULE.

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** One session. Everything that it holds ends with it. */
public final class Client implements AutoCloseable {
    /** An error of the cell. The code is stable and meant for programs. */
    public static final class LockkeeperException extends IOException {
        public final String code;

        LockkeeperException(String code, String answer) {
            super(answer);
            this.code = code;
        }
    }

    /** The work under a lock. */
    public interface Work {
        void run(long token) throws Exception;
    }

    private final HttpClient http;
    private final String token;
    private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });
    private final List<String> urls;
    private final long ttlMs;
    private final String session;
    private volatile long deadline;

    /** Token and authority may be null: then no token is sent, and the authorities of the JDK are trusted. */
    public Client(List<String> urls, long ttlMs, String owner, String token, Path ca)
            throws IOException, InterruptedException, GeneralSecurityException {
        // Not HTTP/2: a renewal must not share its connection with calls that wait.
        HttpClient.Builder builder = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                // RULE: follow no redirect of HTTP. It could lead out of TLS, and the token would go with it.
                .followRedirects(HttpClient.Redirect.NEVER)
                .connectTimeout(Duration.ofSeconds(5));
        http = ca == null ? builder.build() : builder.sslContext(sslContext(ca)).build();
        this.token = token;
        this.urls = new ArrayList<>(urls);
        this.ttlMs = ttlMs;
        long sent = System.nanoTime();
        session = text(call("session/open", "{\"ttl_ms\": %d, \"owner\": %s}".formatted(ttlMs, quoted(owner))), "session");
        setDeadline(sent);
        // RULE: renew three times within each TTL, so that one lost answer does no harm.
        timer.scheduleAtFixedRate(this::renew, ttlMs / 3, ttlMs / 3, TimeUnit.MILLISECONDS);
    }

    private static SSLContext sslContext(Path ca) throws IOException, GeneralSecurityException {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (var pem = Files.newInputStream(ca)) {
            for (var certificate : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                trusted.setCertificateEntry("ca-" + trusted.size(), certificate);
            }
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    /** RULE: a secret comes from a file or the environment, never from the command line, which every user can read. */
    static String tokenFromEnvironment() throws IOException {
        String file = System.getenv("LOCKKEEPER_AUTH_TOKEN_FILE");
        return file == null ? System.getenv("LOCKKEEPER_AUTH_TOKEN") : Files.readString(Path.of(file)).strip();
    }

    private void setDeadline(long sent) {
        // RULE: count from when the renewal was sent, less a margin for clock drift. This deadline then
        // passes before the cell grants the locks to others.
        deadline = sent + ttlMs * 990_000 - 2_000_000;
    }

    private void renew() {
        long sent = System.nanoTime();
        try {
            call("session/keepalive", "{\"session\": %s}".formatted(quoted(session)));
            setDeadline(sent);
        } catch (LockkeeperException refused) {
            if (refused.code.equals("session_lost") || refused.code.equals("unauthenticated")) {
                deadline = System.nanoTime();
            }
        } catch (IOException unanswered) {
            // The deadline decides, not the network.
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    /** False means: stop the work at once, because the lock may be granted to others. */
    public boolean holds() {
        return System.nanoTime() - deadline < 0;
    }

    /** Makes one call. Tries the next node, or the leader, until one answers. */
    private String call(String path, String body) throws IOException, InterruptedException {
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (true) {
            String url;
            synchronized (urls) {
                url = urls.get(0);
            }
            String leader = null;
            try {
                HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + "/v1/" + path))
                        .timeout(Duration.ofSeconds(60))
                        .POST(HttpRequest.BodyPublishers.ofString(body));
                if (token != null) {
                    request.header("authorization", "Bearer " + token);
                }
                HttpResponse<String> answer = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() == 200) {
                    return answer.body();
                }
                String code = text(answer.body(), "code");
                if (!code.equals("unavailable") && !code.equals("not_leader")) {
                    throw new LockkeeperException(code, answer.body());
                }
                leader = text(answer.body(), "leader");
            } catch (LockkeeperException refused) {
                throw refused;
            } catch (IOException unanswered) {
                if (System.nanoTime() - giveUp > 0) {
                    throw unanswered;
                }
            }
            if (System.nanoTime() - giveUp > 0) {
                throw new IOException("no node answers: " + urls);
            }
            synchronized (urls) {
                if (leader != null) {
                    // RULE: keep using TLS, or the token would be sent in clear text.
                    urls.add(0, url.substring(0, url.indexOf("://") + 3) + leader);
                    urls.subList(Math.min(8, urls.size()), urls.size()).clear();
                } else {
                    urls.add(urls.remove(0));
                }
            }
            Thread.sleep(50);
        }
    }

    /** Holds the lock while the work runs. */
    public void lock(String name, long waitMs, Work work) throws Exception {
        // RULE: use one id for each acquire, the same in all its retries. A retry is then the same request: never a second
        // grant, never a second place in the queue.
        String grant = call("lock/acquire", "{\"session\": %s, \"lock\": %s, \"wait_ms\": %d, \"request\": \"%s\"}"
                .formatted(quoted(session), quoted(name), waitMs, UUID.randomUUID()));
        long token = number(grant, "token");
        try {
            work.run(token);
        } finally {
            call("lock/release", "{\"session\": %s, \"lock\": %s, \"token\": %d}".formatted(quoted(session), quoted(name), token));
        }
    }

    /** RULE: the resource checks the token. Here it is a value of the cell; for other resources there are gates. */
    public void put(String key, String value, String lock, long token) throws IOException, InterruptedException {
        call("value/put", "{\"key\": %s, \"value\": %s, \"fence\": {\"lock\": %s, \"token\": %d}}"
                .formatted(quoted(key), quoted(value), quoted(lock), token));
    }

    @Override
    public void close() throws IOException, InterruptedException {
        timer.shutdownNow();
        call("session/close", "{\"session\": %s}".formatted(quoted(session)));
    }

    // A minimal JSON reader: the answers are flat, and the fields read here have no escapes.

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    private static String text(String json, String name) {
        var found = Pattern.compile('"' + name + "\"\\s*:\\s*\"([^\"]*)\"").matcher(json);
        return found.find() ? found.group(1) : null;
    }

    private static long number(String json, String name) {
        var found = Pattern.compile('"' + name + "\"\\s*:\\s*(\\d+)").matcher(json);
        if (!found.find()) {
            throw new IllegalStateException("no " + name + " in " + json);
        }
        return Long.parseLong(found.group(1));
    }

    public static void main(String[] args) throws Exception {
        String name = "clients/java";
        List<String> urls = args.length > 0 ? List.of(args) : List.of("http://127.0.0.1:7420");
        long[] first = new long[1];
        String ca = System.getenv("LOCKKEEPER_CA");
        try (Client keeper = new Client(urls, 10_000, "java", tokenFromEnvironment(), ca == null ? null : Path.of(ca))) {
            keeper.lock(name, 5_000, token -> {
                first[0] = token;
                if (!keeper.holds()) {
                    throw new IllegalStateException("the session is over");
                }
                keeper.put(name, "paid", name, token);
                System.out.println("written under a token");
            });
            keeper.lock(name, 5_000, second -> {
                try {
                    keeper.put(name, "too late", name, first[0]);
                } catch (LockkeeperException refused) {
                    System.out.println("the older token is refused: " + refused.code);
                    return;
                }
                throw new IllegalStateException("the stale token was accepted");
            });
        }
    }
}
