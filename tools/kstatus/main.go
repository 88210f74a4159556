// kstatus reads Kubernetes objects as JSON from its input, one after another, and writes a line for each: its
// status by kstatus' own library, a tab, and the message.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	input := json.NewDecoder(os.Stdin)
	for {
		var raw json.RawMessage
		if err := input.Decode(&raw); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			log.Fatal(err)
		}
		result, err := status.Compute(object)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\t%s\n", result.Status, strings.ReplaceAll(result.Message, "\n", " "))
	}
}
