// A client of Lockkeeper in Go, with the standard library only.
//
//	go run client.go http://127.0.0.1:7420
//	LOCKKEEPER_CA=ca.pem LOCKKEEPER_AUTH_TOKEN_FILE=ci.token go run client.go https://locks.example:7420
//
// Copy this file and adapt it. The rules that keep it safe are marked with RULE.
package main

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// LockkeeperError is an error of the cell. Code is stable and meant for programs.
type LockkeeperError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Leader  string `json:"leader"`
}

func (r *LockkeeperError) Error() string { return r.Code + ": " + r.Message }

// Keeper is one session. Everything that it holds ends with it.
type Keeper struct {
	mutex    sync.Mutex
	urls     []string
	deadline time.Time
	session  string
	ttl      time.Duration
	closed   chan struct{}
	token    string
	http     *http.Client
}

type object = map[string]any

// TokenFromEnvironment reads the access token. RULE: a secret comes from a file or the environment, never from the command
// line, which every user can read.
func TokenFromEnvironment() (string, error) {
	file := os.Getenv("LOCKKEEPER_AUTH_TOKEN_FILE")
	if file == "" {
		return os.Getenv("LOCKKEEPER_AUTH_TOKEN"), nil
	}
	text, err := os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}

// httpClient trusts the authority in this file; by default, the authorities that the system trusts.
func httpClient(ca string) (*http.Client, error) {
	// RULE: follow no redirect of HTTP. It could lead out of TLS, and the token would go with it.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if ca == "" {
		return &http.Client{CheckRedirect: refuse}, nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", ca)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	return &http.Client{Transport: transport, CheckRedirect: refuse}, nil
}

// Open opens a session and keeps it alive until Close. Token and ca may be empty.
func Open(urls []string, ttl time.Duration, owner, token, ca string) (*Keeper, error) {
	http, err := httpClient(ca)
	if err != nil {
		return nil, err
	}
	k := &Keeper{urls: append([]string{}, urls...), ttl: ttl, closed: make(chan struct{}), token: token, http: http}
	sent := time.Now()
	var opened struct{ Session string }
	if err := k.call("session/open", object{"ttl_ms": ttl.Milliseconds(), "owner": owner}, &opened); err != nil {
		return nil, err
	}
	k.session = opened.Session
	k.setDeadline(sent)
	go k.renew()
	return k, nil
}

func (k *Keeper) setDeadline(sent time.Time) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	// RULE: count from when the renewal was sent, less a margin for clock drift. This deadline then
	// passes before the cell grants the locks to others.
	k.deadline = sent.Add(k.ttl*99/100 - 2*time.Millisecond)
}

func (k *Keeper) renew() {
	// RULE: renew three times within each TTL, so that one lost answer does no harm.
	ticks := time.NewTicker(k.ttl / 3)
	defer ticks.Stop()
	for {
		select {
		case <-k.closed:
			return
		case <-ticks.C:
		}
		sent := time.Now()
		err := k.call("session/keepalive", object{"session": k.session}, nil)
		var refused *LockkeeperError
		switch {
		case err == nil:
			k.setDeadline(sent)
		case errors.As(err, &refused) && (refused.Code == "session_lost" || refused.Code == "unauthenticated"):
			k.setDeadline(time.Time{})
			return
		} // Without an answer the deadline decides, not the network.
	}
}

// Holds reports whether the work may continue. False means: stop at once, because the lock may be granted to others.
func (k *Keeper) Holds() bool {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return time.Now().Before(k.deadline)
}

// call makes one call. It tries the next node, or the leader, until one answers.
func (k *Keeper) call(path string, body object, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for giveUp := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		k.mutex.Lock()
		url := k.urls[0]
		k.mutex.Unlock()
		refused, err := k.post(url+"/v1/"+path, text, answer)
		if err == nil && refused == nil {
			return nil
		}
		if refused != nil && refused.Code != "unavailable" && refused.Code != "not_leader" {
			return refused
		}
		if time.Now().After(giveUp) {
			if refused != nil {
				err = refused
			}
			return fmt.Errorf("no node answers: %v: %w", k.urls, err)
		}
		k.mutex.Lock()
		if refused != nil && refused.Leader != "" {
			// RULE: keep using TLS, or the token would be sent in clear text.
			scheme, _, _ := strings.Cut(k.urls[0], "://")
			k.urls = append([]string{scheme + "://" + refused.Leader}, k.urls...)
			k.urls = k.urls[:min(8, len(k.urls))]
		} else {
			k.urls = append(k.urls[1:], k.urls[0])
		}
		k.mutex.Unlock()
	}
}

func (k *Keeper) post(url string, body []byte, answer any) (*LockkeeperError, error) {
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("content-type", "application/json")
	if k.token != "" {
		request.Header.Set("authorization", "Bearer "+k.token)
	}
	response, err := k.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		var failed struct{ Error LockkeeperError }
		if err := json.NewDecoder(response.Body).Decode(&failed); err != nil {
			return nil, err
		}
		return &failed.Error, nil
	}
	if answer == nil {
		return nil, nil
	}
	return nil, json.NewDecoder(response.Body).Decode(answer)
}

// Lock holds the lock while work runs.
func (k *Keeper) Lock(name string, wait time.Duration, work func(token uint64) error) error {
	// RULE: use one id for each acquire, the same in all its retries. A retry is then the same request: never a second
	// grant, never a second place in the queue.
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	var grant struct{ Token uint64 }
	request := object{"session": k.session, "lock": name, "wait_ms": wait.Milliseconds(), "request": hex.EncodeToString(id)}
	if err := k.call("lock/acquire", request, &grant); err != nil {
		return err
	}
	defer k.call("lock/release", object{"session": k.session, "lock": name, "token": grant.Token}, nil)
	return work(grant.Token)
}

// Put writes a value. RULE: the resource checks the token. Here it is a value of the cell; for other resources there are gates.
func (k *Keeper) Put(key, value, lock string, token uint64) error {
	fence := object{"lock": lock, "token": token}
	return k.call("value/put", object{"key": key, "value": value, "fence": fence}, nil)
}

// Close ends the session.
func (k *Keeper) Close() error {
	close(k.closed)
	return k.call("session/close", object{"session": k.session}, nil)
}

func run(urls []string) error {
	const name = "clients/go"
	token, err := TokenFromEnvironment()
	if err != nil {
		return err
	}
	keeper, err := Open(urls, 10*time.Second, "go", token, os.Getenv("LOCKKEEPER_CA"))
	if err != nil {
		return err
	}
	var first uint64
	err = keeper.Lock(name, 5*time.Second, func(token uint64) error {
		first = token
		if !keeper.Holds() {
			return errors.New("the session is over")
		}
		return keeper.Put(name, "paid", name, token)
	})
	if err != nil {
		return err
	}
	fmt.Println("written under a token")
	err = keeper.Lock(name, 5*time.Second, func(second uint64) error {
		var refused *LockkeeperError
		if second <= first || !errors.As(keeper.Put(name, "too late", name, first), &refused) {
			return errors.New("the stale token was accepted")
		}
		fmt.Println("the older token is refused: " + refused.Code)
		return nil
	})
	if err != nil {
		return err
	}
	return keeper.Close()
}

func main() {
	urls := os.Args[1:]
	if len(urls) == 0 {
		urls = []string{"http://127.0.0.1:7420"}
	}
	if err := run(urls); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
