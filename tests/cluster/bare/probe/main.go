// What the cluster's tests run in pods: `probe serve` answers every request with the host name,
// `probe get URL` prints the answer of a URL. It has no use outside these tests.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "get" {
		os.Exit(get(os.Args[2]))
	}
	serve()
}

func serve() {
	name, _ := os.Hostname()
	http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(answer, name)
	})
	go http.ListenAndServe(":8080", nil)
	fmt.Println("serving")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
}

func get(url string) int {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer answer.Body.Close()
	io.Copy(os.Stdout, answer.Body)
	return 0
}
